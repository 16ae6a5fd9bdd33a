/** The page when there is no map to show: why, and what to do. */

import { button, element, replaceChildren } from "./dom";
import type { Host } from "../host";
import { pluralize } from "../format_numbers";
import { formatTitle } from "../paint/token_text";
import type { Summary } from "../server/protocol";

/** What to do when nothing answers. */
export function getStoppedMessage(host: Host): string {
  if (host.kind === "notebook") return "The kernel does not answer; run the cell again.";
  if (host.kind === "site") return "The host of this site does not answer. Check the connection, then reload the page.";
  return "The server does not answer. If it has stopped, start it again with the same command and open the address that it prints: this page cannot reach a new server.";
}

export function showLoading(root: HTMLElement): void {
  replaceChildren(
    root,
    element("main", { class: "message" }, element("h1", {}, "AttnScope"), element("p", { role: "status" }, "Opening…")),
  );
}

export function showProblem(root: HTMLElement, title: string, message: string, ...more: HTMLElement[]): void {
  replaceChildren(
    root,
    element(
      "main",
      { class: "message" },
      element("h1", {}, "AttnScope"),
      element("h2", {}, title),
      element("p", { role: "alert" }, message),
      ...more,
    ),
  );
}

export function createNoTracesHelp(): HTMLElement[] {
  return [
    element("p", {}, "Record one and open it:"),
    element("pre", {}, element("code", {}, "attnscope look MODEL TEXT\nattnscope explore FOLDER")),
  ];
}

/** The link names a trace this server does not have. */
export function createMissingTraceHelp(wanted: string, traces: readonly Summary[], open: (trace: string) => void): HTMLElement[] {
  const ids = element("p", {}, "The link names the trace ", element("code", {}, wanted), ".");
  const how = element(
    "p",
    {},
    "To see it, open the folder that holds that trace with ",
    element("code", {}, "attnscope explore FOLDER"),
    " and use the link again there.",
  );
  if (traces.length === 0) return [ids, how];
  return [
    ids,
    how,
    element("p", {}, "This server has:"),
    element(
      "ul",
      { class: "trace-list" },
      ...traces.map((summary) =>
        element(
          "li",
          {},
          button(element("bdi", {}, formatTitle(summary.name)), () => open(summary.trace)),
          element(
            "span",
            { class: "soft" },
            `${pluralize(summary.tokens, "token")}, ${pluralize(summary.layers, "layer")}, ${pluralize(summary.heads, "head")}`,
          ),
        ),
      ),
    ),
  ];
}

export interface Banner {
  readonly element: HTMLElement;
  show(): void;
  hide(): void;
}

/** Shown on top while the server does not respond; the map stays. */
export function createBanner(host: Host, retry: () => Promise<void>): Banner {
  const message = element("span", {}, getStoppedMessage(host));
  const again = button("Try again", () => {
    again.disabled = true;
    message.textContent = "Trying…";
    void retry()
      .catch((error: unknown) => {
        // An error response: another run of the server with another key.
        message.textContent =
          error instanceof TypeError
            ? getStoppedMessage(host)
            : "A server answers, but not to this page: open the address it printed when it started.";
      })
      .finally(() => {
        again.disabled = false;
      });
  });
  const banner = element("div", { class: "banner", role: "alert", hidden: true }, message, again);
  return {
    element: banner,
    show() {
      if (banner.hidden) message.textContent = getStoppedMessage(host);
      banner.hidden = false;
    },
    hide() {
      banner.hidden = true;
    },
  };
}

export interface Notice {
  readonly element: HTMLElement;
  show(text: string): void;
}

/** A short message at the bottom that disappears by itself: "Link copied." */
export function createNotice(signal: AbortSignal): Notice {
  const line = element("p", { class: "notice", role: "status", hidden: true });
  let timer: ReturnType<typeof setTimeout> | undefined;
  signal.addEventListener("abort", () => clearTimeout(timer));
  return {
    element: line,
    show(text) {
      line.textContent = text;
      line.hidden = false;
      clearTimeout(timer);
      timer = setTimeout(() => {
        line.hidden = true;
      }, 4000);
    },
  };
}
