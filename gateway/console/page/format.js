// Numbers and elements as people read them.

export const NONE = "–";

export function count(value) {
  if (value === null || value === undefined) return NONE;
  if (Math.abs(value) >= 1e6) return `${(value / 1e6).toFixed(2)} M`;
  if (Math.abs(value) >= 1e5) return `${(value / 1e3).toFixed(0)} k`;
  return value.toLocaleString("en", { maximumFractionDigits: 1 });
}

export function share(part, whole) {
  return whole > 0 ? `${((100 * part) / whole).toFixed(1)} %` : NONE;
}

export function money(value) {
  if (value === null || value === undefined) return NONE;
  const digits = Math.abs(value) >= 100 ? 0 : Math.abs(value) >= 1 ? 2 : 5;
  return value.toLocaleString("en", { maximumFractionDigits: digits });
}

export function ms(value) {
  if (value === null || value === undefined) return NONE;
  return value >= 100 ? value.toFixed(0) : value >= 10 ? value.toFixed(1) : value.toFixed(2);
}

export function range(low, high, format) {
  const [one, other] = [format(low), format(high)];
  return one === other ? one : `${one} to ${other}`;
}

export function clock(seconds) {
  const at = new Date(seconds * 1000);
  const pad = (number, width = 2) => String(number).padStart(width, "0");
  return `${pad(at.getHours())}:${pad(at.getMinutes())}:${pad(at.getSeconds())}.${pad(at.getMilliseconds(), 3)}`;
}

// The value below which this share of the sorted values lies, between neighbours in proportion.
export function quantile(sorted, share) {
  if (sorted.length === 0) return null;
  const at = (sorted.length - 1) * share;
  const low = Math.floor(at);
  const high = Math.min(low + 1, sorted.length - 1);
  return sorted[low] + (sorted[high] - sorted[low]) * (at - low);
}

// An element with text and children; never markup.
export function make(tag, { text, kind, ...attributes } = {}, ...children) {
  const element = document.createElement(tag);
  if (text !== undefined) element.textContent = text;
  if (kind) element.className = kind;
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
}

export const find = (selector) => document.querySelector(selector);
