/**
 * The explorer in a cell of a notebook.
 *
 * In: what anywidget gives a view, and the style sheet. Out: a running explorer in a shadow root, so that neither the
 * notebook's style nor ours reaches the other; and a function that takes it away, with all that it held.
 * Does not know: which notebook it is, but for how to see whether it is dark.
 */

import { saveByLink, type Host } from "./host";
import { element } from "./panels/dom";
import { createCommTransport, newNumber, send, type Model } from "./server/comm_transport";
import { start } from "./start_explorer";

export interface Cell {
  readonly model: Model;
  readonly el: HTMLElement;
  readonly css: string;
}

export function render({ model, el, css }: Cell): () => void {
  const stop = new AbortController();
  const id = newNumber();
  const frame = element("div", {});
  const waiting = element("p", { class: "notice", role: "status" }, "Waiting for the kernel…");
  const root = element("div", { class: "explorer" });
  const sheet = new CSSStyleSheet();
  sheet.replaceSync(css);
  const shadow = frame.attachShadow({ mode: "open" });
  shadow.adoptedStyleSheets = [sheet];
  shadow.append(root);
  // Keys that are pressed here are ours: to the notebook they might mean "delete this cell".
  frame.dataset["lmSuppressShortcuts"] = "true";
  frame.addEventListener("keydown", (event) => {
    if (!event.ctrlKey && !event.metaKey && !event.altKey) event.stopPropagation();
  });
  frame.style.cssText = "display: block; position: relative; resize: vertical; overflow: hidden";
  const fit = (): void => {
    frame.style.height = `${Number(model.get("height"))}px`;
  };
  fit();
  model.on("change:height", fit);
  el.append(frame);
  send(model, { view: "opened", id });
  addEventListener("pagehide", () => send(model, { view: "hidden", id }), { signal: stop.signal });
  const transport = createCommTransport(model, stop.signal, (silent) => {
    if (silent) root.append(waiting);
    else waiting.remove();
  });
  const running = start(root, transport, createNotebookHost(model));
  return () => {
    model.off("change:height", fit);
    stop.abort();
    void running.then((explorer) => explorer.destroy());
    frame.remove();
    send(model, { view: "closed", id });
  };
}

function createNotebookHost(model: Model): Host {
  const darkness = matchMedia("(prefers-color-scheme: dark)");
  const { body } = document;
  const arriving = new Map<() => void, () => void>();
  let writing = false;
  let written = "";
  const write = (_data: unknown, _unused: string, address?: string | URL | null): void => {
    writing = true;
    written = String(address);
    model.set("state", written);
    writing = false;
    model.save_changes();
  };
  return {
    kind: "notebook",
    place: {
      history: { replaceState: write, pushState: write },
      location: {
        // In Python one may write an address without a trace, by which is meant the one that is shown.
        get hash() {
          return String(model.get("state")).replace("/-/", `/${written.split("/")[1] ?? "-"}/`);
        },
      },
      addEventListener(_type, listener) {
        const arrive = (): void => {
          if (!writing) listener();
        };
        arriving.set(listener, arrive);
        model.on("change:state", arrive);
      },
      removeEventListener(_type, listener) {
        model.off("change:state", arriving.get(listener) ?? listener);
        arriving.delete(listener);
      },
    },
    wheelZooms: "with-ctrl",
    theme() {
      // As JupyterLab and VS Code say it; anything else is asked of the browser.
      const { jpThemeLight, vscodeThemeKind } = body.dataset;
      const dark = jpThemeLight ? jpThemeLight === "false" : vscodeThemeKind ? !vscodeThemeKind.includes("light") : darkness.matches;
      return dark ? "dark" : "light";
    },
    onTheme(listener, ends) {
      // In the frame after, for notebooks put themselves out of sight while they change, and what has no size is not painted.
      const watching = new MutationObserver(() => requestAnimationFrame(() => ends.aborted || listener()));
      watching.observe(body, { attributeFilter: ["data-jp-theme-light", "data-vscode-theme-kind"] });
      ends.addEventListener("abort", () => watching.disconnect());
      darkness.addEventListener("change", listener, { signal: ends });
    },
    save: saveByLink,
  };
}
