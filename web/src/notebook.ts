/**
 * The explorer in a cell of a notebook.
 *
 * In: what anywidget gives a view, and the style sheet. Out: a running explorer in a shadow root, so that neither the
 * notebook's style nor ours affects the other; and a function that removes it.
 */

import { downloadFile, queryDark, type Host } from "./host";
import { later } from "./later";
import { element } from "./panels/dom";
import { createCommTransport, createMessageId, sendMessage, type WidgetModel } from "./server/comm_transport";
import { startExplorer } from "./start_explorer";

export interface WidgetCell {
  readonly model: WidgetModel;
  readonly el: HTMLElement;
  readonly css: string;
}

export function render({ model, el, css }: WidgetCell): () => void {
  const stop = new AbortController();
  const id = createMessageId();
  const frame = element("div", {});
  const waiting = element("p", { class: "notice", role: "status" }, "Waiting for the kernel…");
  const root = element("div", { class: "explorer" });
  const sheet = new CSSStyleSheet();
  sheet.replaceSync(css);
  const shadow = frame.attachShadow({ mode: "open" });
  shadow.adoptedStyleSheets = [sheet];
  shadow.append(root);
  // Keep key presses from the notebook, where they might delete the cell.
  frame.dataset["lmSuppressShortcuts"] = "true";
  frame.addEventListener("keydown", (event) => {
    if (!event.ctrlKey && !event.metaKey && !event.altKey) event.stopPropagation();
  });
  frame.style.cssText = "display: block; position: relative; resize: vertical; overflow: hidden";
  const applyHeight = (): void => {
    frame.style.height = `${Number(model.get("height"))}px`;
  };
  applyHeight();
  model.on("change:height", applyHeight);
  el.append(frame);
  sendMessage(model, { view: "opened", id });
  addEventListener("pagehide", () => sendMessage(model, { view: "hidden", id }), { signal: stop.signal });
  const transport = createCommTransport(model, id, stop.signal, (silent) => {
    if (silent) root.append(waiting);
    else waiting.remove();
  });
  const running = startExplorer(root, transport, createNotebookHost(model), () => Promise.resolve(later));
  return () => {
    model.off("change:height", applyHeight);
    stop.abort();
    void running.then((explorer) => explorer.destroy());
    frame.remove();
    sendMessage(model, { view: "closed", id });
  };
}

function createNotebookHost(model: WidgetModel): Host {
  const { body } = document;
  const listeners = new Map<() => void, () => void>();
  let isWriting = false;
  let lastWritten = "";
  const write = (_data: unknown, _unused: string, address?: string | URL | null): void => {
    isWriting = true;
    lastWritten = String(address);
    model.set("state", lastWritten);
    isWriting = false;
    model.save_changes();
  };
  return {
    kind: "notebook",
    addressBar: {
      history: { replaceState: write, pushState: write },
      location: {
        // An address written in Python may leave out the trace; it means the shown one.
        get hash() {
          return String(model.get("state")).replace("/-/", `/${lastWritten.split("/")[1] ?? "-"}/`);
        },
      },
      addEventListener(_type, listener) {
        const onStateChange = (): void => {
          if (!isWriting) listener();
        };
        listeners.set(listener, onStateChange);
        model.on("change:state", onStateChange);
      },
      removeEventListener(_type, listener) {
        model.off("change:state", listeners.get(listener) ?? listener);
        listeners.delete(listener);
      },
    },
    wheelZooms: "with-ctrl",
    getTheme() {
      // As JupyterLab and VS Code mark it, else as the browser prefers.
      const { jpThemeLight, vscodeThemeKind } = body.dataset;
      const dark = jpThemeLight ? jpThemeLight === "false" : vscodeThemeKind ? !vscodeThemeKind.includes("light") : queryDark().matches;
      return dark ? "dark" : "light";
    },
    onThemeChange(listener, signal) {
      // In the next frame: notebooks hide themselves while the theme changes, and hidden parts are not painted.
      const observer = new MutationObserver(() => requestAnimationFrame(() => signal.aborted || listener()));
      observer.observe(body, { attributeFilter: ["data-jp-theme-light", "data-vscode-theme-kind"] });
      signal.addEventListener("abort", () => observer.disconnect());
      queryDark().addEventListener("change", listener, { signal });
    },
    saveFile: downloadFile,
  };
}
