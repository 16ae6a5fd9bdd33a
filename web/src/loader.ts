/**
 * The script of the widget: shows a message until the explorer is loaded from the kernel, once per page.
 *
 * Notebooks keep a copy of a widget's script in each model and in each saved file, and the browser keeps every module
 * that it has ever loaded. So this is small, and the rest is shared by all widgets of one build.
 */

import type { WidgetCell } from "./notebook";
import { createMessageId, type KernelMessage, type MessageBuffer, type WidgetModel } from "./server/comm_transport";

interface ExplorerModule {
  readonly render: (cell: WidgetCell) => () => void;
  readonly css: string;
}

const WAITING_MESSAGE = "The explorer comes from the kernel, which has not answered yet. If it was restarted, run the cell again.";

const loadedModules = ((globalThis as { attnscopeCode?: Map<unknown, Promise<ExplorerModule>> }).attnscopeCode ??= new Map());

function loadFile(model: WidgetModel, path: string, gone: AbortSignal): Promise<MessageBuffer> {
  const id = createMessageId();
  return new Promise((resolve, reject) => {
    const onMessage = (message: KernelMessage, parts: [MessageBuffer]): void => {
      if (message.id !== id) return;
      model.off("msg:custom", onMessage);
      resolve(parts[0]);
    };
    model.on("msg:custom", onMessage);
    gone.addEventListener("abort", (event) => {
      model.off("msg:custom", onMessage);
      reject(event);
    });
    model.send({ id, path });
  });
}

async function loadExplorer(model: WidgetModel, gone: AbortSignal): Promise<ExplorerModule> {
  const [script, style] = await Promise.all([loadFile(model, "explorer.js", gone), loadFile(model, "explorer.css", gone)]);
  const address = URL.createObjectURL(new Blob([script], { type: "text/javascript" }));
  const module = (await import(address)) as { default: Pick<ExplorerModule, "render"> };
  URL.revokeObjectURL(address);
  return { render: module.default.render, css: new TextDecoder().decode(style) };
}

function render({ model, el }: Omit<WidgetCell, "css">): () => void {
  const removed = new AbortController();
  let leave = (): void => undefined;
  const build = model.get("_build");
  const loadAndRender = (): void => {
    const pending = loadedModules.get(build);
    const code = pending ?? loadExplorer(model, removed.signal);
    loadedModules.set(build, code);
    code.then(
      ({ render, css }) => {
        if (removed.signal.aborted) return;
        el.textContent = "";
        leave = render({ model, el, css });
      },
      (error: unknown) => {
        if (loadedModules.get(build) === code) loadedModules.delete(build);
        if (removed.signal.aborted) return;
        // The view that was loading it is gone, so load it here.
        if (pending) loadAndRender();
        else el.textContent = `The explorer could not be loaded: ${String(error)}`;
      },
    );
  };
  el.textContent = WAITING_MESSAGE;
  loadAndRender();
  return () => {
    removed.abort();
    leave();
    leave = () => undefined;
  };
}

export default { render };
