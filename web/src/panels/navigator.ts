/**
 * Layers and heads as one grid of buttons, coloured by a question: rows are layers, columns are heads.
 *
 * All columns fit into the width. Only one button is in the tab order; arrows move between them, as in the grid pattern of ARIA. Narrow pages show two
 * selects instead, and the style sheet decides which.
 */

import { element, field, replaceChildren, select, setAttributes } from "./dom";
import { formatCount, pluralize } from "../format_numbers";
import { formatTitle } from "../paint/token_text";
import { listHeads } from "../head_order";
import { getHeadNumber, getLayerNumber, type Meta } from "../server/protocol";
import { isAvailable, type HeadId } from "../state";

/** How a cell shows the answer of its head. */
export interface HeadCell {
  /** Its strength of colour, 0 to 1. */
  readonly share: number;
  /** Which colour: a label, or the sign of a value. */
  readonly colour: string;
  /** A letter or shape in the cell. */
  readonly mark: string;
  /** The value, for the reader. */
  readonly description: string;
  readonly faded: boolean;
}

export interface Navigator {
  readonly element: HTMLElement;
  show(meta: Meta | null, layer: number, head: number, model: string): void;
  paint(getCell: (layer: number, head: number) => HeadCell): void;
}

/** The grid takes this share of the height, as far as its cells are not smaller or larger than that. */
const HEIGHT_SHARE = 0.46;
const [MIN_CELL_HEIGHT, MAX_CELL_HEIGHT] = [8, 24];
/** Below this size not every row or column has its number. */
const MIN_NUMBER_SIZE = 11;
const CORNER_WIDTH = 20; // as in the style sheet

/** `availableHeads` are the heads that can be opened; null is all. `controls` stand above the grid, `below` under it. */
export function createNavigator(
  availableHeads: readonly HeadId[] | null,
  onChoose: (layer: number, head: number) => void,
  controls: HTMLElement,
  below: HTMLElement,
  signal: AbortSignal,
): Navigator {
  const about = element("div", { class: "about" });
  const frame = element("div", { class: "head-grid" });
  const selects = element("div", { class: "head-selects" });
  const root = element("nav", { class: "navigator", "aria-label": "Layers and heads" }, about, controls, selects, frame, below);
  let shown: Meta | null = null;
  let buttons: HTMLButtonElement[][] = [];
  /** What each cell shows now: most stay as they are. */
  let painted: string[][] = [];
  let current: HTMLButtonElement | undefined;

  const handleKey = (event: KeyboardEvent): void => {
    const at = getHeadAt(event.target);
    const step = KEY_STEPS[event.key];
    if (!at || !step || !shown || event.ctrlKey || event.metaKey || event.altKey || event.shiftKey) return;
    const layer = Math.min(Math.max(at[0] + step[0], 0), buttons.length - 1);
    const row = buttons[layer] ?? [];
    const wanted = event.key === "Home" ? 0 : event.key === "End" ? row.length - 1 : at[1] + step[1];
    const target = row[Math.min(Math.max(wanted, 0), row.length - 1)];
    event.preventDefault();
    if (target) moveTabStop(target, true);
  };
  const moveTabStop = (target: HTMLButtonElement, focus: boolean): void => {
    for (const row of buttons) for (const cell of row) if (cell.tabIndex === 0) cell.tabIndex = -1;
    target.tabIndex = 0;
    if (focus) target.focus();
  };
  const setCurrent = (cell: HTMLButtonElement | undefined): void => {
    current?.removeAttribute("aria-current");
    current?.parentElement?.setAttribute("aria-selected", "false");
    current = cell;
    if (!cell) return;
    cell.setAttribute("aria-current", "true");
    cell.parentElement?.setAttribute("aria-selected", "true");
    moveTabStop(cell, false);
  };
  /** Sizes come from the observer, because measuring between two changes of the page makes the browser lay it out twice. */
  let [width, height] = [0, 0];
  const fitCells = (): void => {
    if (buttons.length === 0 || height === 0) return;
    const fitting = Math.floor((height * HEIGHT_SHARE) / (buttons.length + 1));
    const cellHeight = Math.min(MAX_CELL_HEIGHT, Math.max(MIN_CELL_HEIGHT, fitting));
    const columns = Math.max(...buttons.map((row) => row.length));
    frame.style.setProperty("--cell-height", `${cellHeight}px`);
    frame.classList.toggle("few-rows", cellHeight < MIN_NUMBER_SIZE);
    frame.classList.toggle("few-columns", (width - CORNER_WIDTH) / columns < MIN_NUMBER_SIZE + 3);
    if (fitting < MIN_CELL_HEIGHT && current) scrollInside(frame, current);
  };
  const observer = new ResizeObserver((entries) => {
    for (const { target, contentRect } of entries) {
      if (target === root) height = contentRect.height;
      else width = contentRect.width;
    }
    fitCells();
  });
  observer.observe(root);
  observer.observe(frame);
  signal.addEventListener("abort", () => observer.disconnect());
  frame.addEventListener("keydown", handleKey);
  frame.addEventListener("click", (event) => {
    const at = getHeadAt(event.target);
    if (at && isAvailable(availableHeads, ...at)) onChoose(...at);
  });

  return {
    element: root,
    show(meta, layer, head, model) {
      root.hidden = meta === null;
      const cell = buttons[layer]?.[head];
      if (!meta || (meta === shown && cell === current)) return;
      if (meta !== shown) {
        shown = meta;
        buttons = buildGrid(frame, meta, availableHeads);
        painted = buttons.map((row) => row.map(() => ""));
        replaceChildren(about, ...describeModel(meta, model));
      }
      replaceChildren(selects, ...createHeadSelects(meta, [layer, head], availableHeads, onChoose));
      setCurrent(buttons[layer]?.[head]);
      requestAnimationFrame(fitCells);
    },
    paint(getCell) {
      if (!shown) return;
      for (const [layer, row] of buttons.entries()) {
        const [title, name] = [`layer ${getLayerNumber(shown, layer)}`, formatTitle(shown.layers[layer]?.name ?? "")];
        for (const [head, cell] of row.entries()) {
          const { share, colour, mark, description, faded } = getCell(layer, head);
          const strength = share.toFixed(3);
          const end = (description && `, ${description}`) + (isAvailable(availableHeads, layer, head) ? "" : ": not in this file");
          const all = [strength, colour, mark, faded, end].join("\n");
          const before = painted[layer];
          if (!before || before[head] === all) continue;
          before[head] = all;
          const headTitle = `head ${getHeadNumber(shown, layer, head)}${end}`;
          cell.style.setProperty("--share", strength);
          setAttributes(cell, {
            "data-colour": colour,
            "data-mark": mark,
            "data-faded": faded,
            "aria-label": `${title}, ${headTitle}`,
            title: `${title} (${name}), ${headTitle}`,
          });
        }
      }
    },
  };
}

const KEY_STEPS: Readonly<Record<string, readonly [number, number]>> = {
  ArrowLeft: [0, -1],
  ArrowRight: [0, 1],
  ArrowUp: [-1, 0],
  ArrowDown: [1, 0],
  Home: [0, 0],
  End: [0, 0],
};

function getHeadAt(target: EventTarget | null): [number, number] | null {
  if (!(target instanceof HTMLElement) || target.dataset["layer"] === undefined) return null;
  return [Number(target.dataset["layer"]), Number(target.dataset["head"])];
}

function buildGrid(frame: HTMLElement, meta: Meta, availableHeads: readonly HeadId[] | null): HTMLButtonElement[][] {
  const most = Math.max(0, ...meta.layers.map(({ heads }) => heads));
  // Layers that recorded other heads than the first have no name in common for a column; their buttons still have theirs.
  const columns = Array.from({ length: most }, (_, head) =>
    element("th", { scope: "col" }, meta.layers.every((_, layer) => getHeadNumber(meta, layer, head) === getHeadNumber(meta, 0, head)) ? String(getHeadNumber(meta, 0, head)) : ""),
  );
  const rows = meta.layers.map((layer, index) =>
    Array.from({ length: layer.heads }, (_, head) =>
      element("button", {
        type: "button",
        tabindex: -1,
        "data-layer": index,
        "data-head": head,
        // Not `disabled`: it can be focused, and its tooltip explains why.
        "aria-disabled": isAvailable(availableHeads, index, head) ? null : "true",
      }),
    ),
  );
  const body = rows.map((cells, index) =>
    element(
      "tr",
      {},
      element("th", { scope: "row" }, String(getLayerNumber(meta, index))),
      ...cells.map((cell) => element("td", { "aria-selected": "false" }, cell)),
    ),
  );
  frame.style.setProperty("--columns", String(most));
  replaceChildren(
    frame,
    element(
      "table",
      { role: "grid", "aria-label": "Layers (rows) and heads (columns)" },
      element(
        "thead",
        {},
        element(
          "tr",
          {},
          element("th", { class: "corner" }, element("span", { class: "visually-hidden" }, "layer")),
          ...columns,
        ),
      ),
      element("tbody", {}, ...body),
    ),
  );
  return rows;
}

function describeModel(meta: Meta, model: string): HTMLElement[] {
  const first = meta.layers[0];
  const heads = meta.layers.reduce((sum, { heads: count }) => sum + count, 0);
  const size = !first
    ? "no layers"
    : first.queries === first.keys
      ? pluralize(first.keys, "token")
      : `${formatCount(first.queries)} queries × ${formatCount(first.keys)} keys`;
  return [
    element("p", { class: "model" }, element("bdi", {}, formatTitle(model))),
    element("p", { class: "soft" }, `${size}, ${pluralize(meta.layers.length, "layer")}, ${pluralize(heads, "head")}`),
  ];
}

/** A layer and a head, each chosen from a list. */
export function createHeadSelects(
  meta: Meta,
  [layer, head]: HeadId,
  availableHeads: readonly HeadId[] | null,
  onChoose: (layer: number, head: number) => void,
): HTMLElement[] {
  const available = listHeads(meta.layers, availableHeads);
  const listInLayer = (wanted: number): number[] => available.filter(([index]) => index === wanted).map(([, index]) => index);
  const layers = select(
    [...new Set(available.map(([index]) => index))].map((index) => [String(index), String(getLayerNumber(meta, index))] as const),
    (value) => {
      const heads = listInLayer(Number(value));
      onChoose(Number(value), heads.findLast((index) => index <= head) ?? heads[0] ?? 0);
    },
  );
  const heads = select(
    listInLayer(layer).map((index) => [String(index), String(getHeadNumber(meta, layer, index))] as const),
    (value) => onChoose(layer, Number(value)),
  );
  layers.value = String(layer);
  heads.value = String(head);
  return [field("layer", layers), field("head", heads)];
}

/** scrollIntoView would move the whole page as well. */
function scrollInside(frame: HTMLElement, cell: HTMLElement): void {
  const [outer, inner] = [frame.getBoundingClientRect(), cell.getBoundingClientRect()];
  const margin = 26; // the sticky headings cover this much
  if (inner.top < outer.top + margin) frame.scrollTop -= outer.top + margin - inner.top;
  else if (inner.bottom > outer.bottom) frame.scrollTop += inner.bottom - outer.bottom;
  if (inner.left < outer.left + margin) frame.scrollLeft -= outer.left + margin - inner.left;
  else if (inner.right > outer.right) frame.scrollLeft += inner.right - outer.right;
}
