// Server-sent events over fetch: it tells why a connection is refused, and one that is lost is taken up where it ended.

const SILENT = 6000; // The gateway says something every second; after so many milliseconds the line is dead.
const FIRST_PAUSE = 500;
const LONGEST_PAUSE = 5000;

export class Stream {
  constructor(url, { event, status }) {
    Object.assign(this, { url, event, status, last: null, pause: FIRST_PAUSE });
  }

  async run() {
    for (;;) {
      const refused = await this.once();
      if (refused === 403) {
        this.status("closed");
        return;
      }
      this.status("lost");
      await new Promise((resolve) => setTimeout(resolve, this.pause));
      this.pause = Math.min(2 * this.pause, LONGEST_PAUSE);
    }
  }

  // One connection from its beginning to its end; the status where it was refused.
  async once() {
    const abort = new AbortController();
    let timer = setTimeout(() => abort.abort(), SILENT);
    try {
      const headers = { accept: "text/event-stream" };
      if (this.last) headers["last-event-id"] = this.last;
      const answer = await fetch(this.url, { headers, signal: abort.signal, cache: "no-store" });
      if (!answer.ok) return answer.status;
      this.pause = FIRST_PAUSE;
      this.status("live");
      const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
      let rest = "";
      for (;;) {
        const { done, value } = await reader.read();
        if (done) return null;
        clearTimeout(timer);
        timer = setTimeout(() => abort.abort(), SILENT);
        const parts = (rest + value).split("\n\n");
        rest = parts.pop();
        parts.forEach((part) => this.take(part));
      }
    } catch {
      return null; // Lost; whoever waits tries again.
    } finally {
      clearTimeout(timer);
      abort.abort();
    }
  }

  take(part) {
    const fields = {};
    for (const line of part.split("\n")) {
      const colon = line.indexOf(": ");
      if (colon > 0) fields[line.slice(0, colon)] = line.slice(colon + 2);
    }
    if (fields.id) this.last = fields.id;
    if (fields.data) this.event(fields.event, JSON.parse(fields.data));
  }
}
