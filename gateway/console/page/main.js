// The page: its views, and the stream that feeds them.

import { find } from "./format.js";
import { Live } from "./live.js";
import { Stream } from "./stream.js";
import { Try } from "./try.js";
import { WhatIf } from "./whatif.js";

const SAID = { live: "Live", lost: "Connection lost, trying again", draining: "The gateway is stopping", closed: "Signed out" };

const views = { live: new Live(), try: new Try(), whatif: new WhatIf() };
const link = find("#link");

function status(state) {
  if (link.dataset.state === state) return;
  link.dataset.state = state;
  link.textContent = SAID[state];
  // The way in is the page itself, which asks for the key.
  if (state === "closed") location.reload();
}

function show() {
  const name = location.hash.slice(1);
  const chosen = name in views ? name : "live";
  for (const key of Object.keys(views)) find(`#${key}`).hidden = key !== chosen;
  for (const each of document.querySelectorAll("nav a")) {
    if (each.dataset.view === chosen) each.setAttribute("aria-current", "page");
    else each.removeAttribute("aria-current");
  }
  document.title = `Forebay console: ${find(`#${chosen}-title`).textContent}`;
  views[chosen].look();
}

function event(name, data) {
  if (name === "state") {
    status(data.draining ? "draining" : "live");
    find("#leave").hidden = !data.settings.keys;
  }
  views.live.event(name, data);
}

addEventListener("hashchange", show);
show();
new Stream("/admin/events", { event, status }).run();
