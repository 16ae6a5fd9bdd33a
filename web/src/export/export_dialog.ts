/**
 * The export dialog: the picture, the weights in view, or a page of its own, each with what it holds and how large it is.
 *
 * In: the map and its head. Out: a file, saved by the host. Closing the dialog cancels.
 */

import { createFigure, type Drawing, type FigurePanel, type FigureSettings } from "./figure";
import { computePixelSize, createPng, createScreenDrawing, createSvg } from "./image_files";
import { createCaption, createFileName } from "./captions";
import type { TokenRanges } from "../geometry/zoom_plan";
import type { MapView } from "../map/map_view";
import { formatCount, pluralize } from "../format_numbers";
import { darkTheme, lightTheme, type Theme } from "../paint/surface";
import { formatTitle, isolateDirection } from "../paint/token_text";
import { segments } from "../panels/controls";
import { createDialog } from "../panels/dialog";
import { button, element, field } from "../panels/dom";
import type { ViewContext } from "../panels/view_context";
import { describeError } from "../server/requests";
import { formatHeadName, getHeadNumber, getLayerNumber, paths, type BlockFormat, type Meta, type TraceHead } from "../server/protocol";
import { isAbortError } from "../server/transport";
import { writeAddress, type HeadId } from "../state";

const MAX_CELLS = 4_194_304;
/** Letters of a cell in a table: digits, point, exponent, comma. */
const CHARACTERS_PER_CELL = 14;
const NPY_HEADER = 128;
const WAIT_MILLISECONDS = 10_000;
const SCALES = ["1", "2", "3", "4"] as const;
/** Columns of a paper, in inches. */
const COLUMN_WIDTHS = { single: 3.25, double: 6.75 } as const;
const MAX_PANELS = 12;
const MAX_TEXT_TOKENS = 24;

type FigureSize = "shown" | "single" | "double" | "own";
/** What a figure may leave out. */
const FIGURE_PARTS = ["title", "tags", "strips", "legend", "caption", "mask"] as const;
const PART_NAMES = { title: "title", tags: "tags of pins", strips: "strips", legend: "legend", caption: "caption", mask: "masked half" };

/** A kind of file: why it cannot be made, or what it holds; and how it is made. */
interface FileKind {
  readonly ending: string;
  readonly problem: string | false;
  describe(): string;
  create(): Promise<Blob>;
}

const formatSize = (bytes: number): string => (bytes < 1e6 ? `${formatCount(Math.ceil(bytes / 1000))} KB` : `${(bytes / 1e6).toFixed(1)} MB`);

/** A head by its name, "L5H6". */
function findHead(meta: Meta, name: string): HeadId {
  const found = /^L(\d+)H(\d+)$/i.exec(name);
  const layer = meta.layers.findIndex((_, index) => getLayerNumber(meta, index) === Number(found?.[1]));
  for (let head = 0; head < (meta.layers[layer]?.heads ?? 0); head++) if (getHeadNumber(meta, layer, head) === Number(found?.[2])) return [layer, head];
  throw new Error(`There is no head ${name}: write heads as L5H6.`);
}

/** `second` is the second map, where two are shown. */
export function openExportDialog(context: ViewContext, map: MapView, shown: TraceHead, root: HTMLElement, secondMap: MapView | null): void {
  const { host, store, traces } = context;
  const { meta, layer, head } = shown;
  const { compare: chosen, pinQuery, pinKey, trace, view } = store.get();
  const compare = view === "map" ? chosen : null;
  const headName = formatHeadName(meta, layer, head);
  const noMapProblem = map.element.clientWidth === 0 && "Open the map to save it as a picture.";
  const about = meta.layers[layer];
  // Without a visible map, the range is the whole matrix.
  const part: TokenRanges = noMapProblem ? { query: [0, about?.queries ?? 0], key: [0, about?.keys ?? 0] } : map.visible();
  const { query, key } = part;
  const white = element("input", { type: "checkbox", checked: true });
  const status = element("p", { class: "export-says", role: "status" });
  const stop = new AbortController();
  let scale: (typeof SCALES)[number] = "2";
  let size: FigureSize = "shown";
  let isSaving = false;

  const createNumberInput = (label: string, value: number, most: number): HTMLInputElement => {
    const input = element("input", { type: "number", min: 1, max: most, step: "any", value, "aria-label": label, class: "bits" });
    input.addEventListener("change", () => update());
    return input;
  };
  const inches = createNumberInput("Width in inches", 5, 40);
  const points = createNumberInput("Size of the letters in points", 8, 40);
  const otherHeads = element("input", { type: "text", placeholder: "L5H6, L2H4", "aria-label": "Other heads" });
  otherHeads.addEventListener("change", () => update());
  const partSwitches = FIGURE_PARTS.map((part) => element("input", { type: "checkbox", checked: true, name: part }));

  const theme = (): Theme => (white.checked || host.getTheme() === "light" ? lightTheme : darkTheme);
  const createWords = (heads: readonly string[]): string => {
    const texts = about?.has_texts ? traces.getTexts(meta).getRange(layer, "key", 0, Math.min(MAX_TEXT_TOKENS, about.keys)) : undefined;
    return createCaption({ meta, text: texts?.join("") ?? "", heads, part, painted: map.painted(), version: context.session.version });
  };
  const getScreenDrawing = (): Drawing => {
    const other = compare && traces.getKnown(compare.trace || trace);
    // Name the text of the second head if it is another one.
    const of = compare?.trace && other ? ` ${isolateDirection(formatTitle(other.name, 24))}` : "";
    const heads = compare && other ? [headName, formatHeadName(other, compare.layer, compare.head) + of] : [headName];
    return createScreenDrawing({ maps: secondMap ? [map, secondMap] : [map], theme: theme(), caption: createWords(heads) });
  };
  const listOtherHeads = (): HeadId[] =>
    otherHeads.value.split(/[\s,;]+/).filter((name) => name !== "").slice(0, MAX_PANELS - 1).map((name) => findHead(meta, name));
  const getSettings = (): FigureSettings => {
    const shown = Object.fromEntries(FIGURE_PARTS.map((part, index) => [part, partSwitches[index]?.checked ?? true])) as Record<(typeof FIGURE_PARTS)[number], boolean>;
    const readNumber = (input: HTMLInputElement, otherwise: number): number => Math.min(40, Math.max(1, input.valueAsNumber || otherwise));
    return { ...shown, inches: size === "single" || size === "double" ? COLUMN_WIDTHS[size] : readNumber(inches, 5), points: readNumber(points, 8) };
  };
  /** What is saved as a picture; the tiles of other heads are loaded first. */
  const createDrawing = async (): Promise<Drawing> => {
    if (size === "shown") return getScreenDrawing();
    const scene = map.getScene();
    if (!scene) throw new Error("There is no map to save.");
    const others: FigurePanel[] = [];
    for (const [otherLayer, otherHead] of listOtherHeads())
      others.push({ name: formatHeadName(meta, otherLayer, otherHead), scene: await map.loadScene({ meta, layer: otherLayer, head: otherHead }, stop.signal) });
    const panels = [{ name: headName, scene }, ...others];
    return createFigure(panels, getSettings(), theme(), createWords(panels.map(({ name }) => name)));
  };
  const formatPixels = (at: string): string | undefined => computePixelSize(getScreenDrawing(), Number(at))?.map(formatCount).join(" × ");
  const download = async (path: string): Promise<Blob> => new Blob([(await context.transport.bytes(path, stop.signal)) ?? ""]);

  const file = host.kind === "file";
  const inView = noMapProblem ? "" : " in view";
  const [queries, keys] = [query[1] - query[0], key[1] - key[0]];
  const cells = queries * keys;
  const createWeightsKind = (ending: BlockFormat, about: string): FileKind => ({
    ending,
    problem: file
      ? "This page was saved to a file, which does not hold exact weights. Open the trace with AttnScope for them."
      : cells > MAX_CELLS && `There are ${formatCount(cells)} pairs${inView}, and ${formatCount(MAX_CELLS)} fit into a file: ${noMapProblem ? "open the map and " : ""}zoom in.`,
    describe: () => `Exact weights of ${headName}, of all pairs${inView}: ${pluralize(queries, "query", "queries")} × ${pluralize(keys, "key")}, ${about}.`,
    create: () => download(paths.block(meta.trace, layer, head, ...query, ...key, ending)),
  });
  const kinds: FileKind[] = [
    {
      ending: "png",
      problem: noMapProblem,
      describe: () =>
        size === "shown"
          ? `The map as it is, with a line of words below it: ${formatPixels(scale) ?? "too many"} pixels.`
          : "What is in view as a figure, 300 dots per inch or more.",
      async create() {
        const drawing = await createDrawing();
        return createPng(drawing, size === "shown" ? Number(scale) : drawing.leastScale);
      },
    },
    {
      ending: "svg",
      problem: noMapProblem,
      describe: () => "The same as a drawing that can be enlarged and edited: names and lines are shapes, the weights are one picture with a pixel for each.",
      create: async () => createSvg(await createDrawing()),
    },
    createWeightsKind("csv", `up to ${formatSize(CHARACTERS_PER_CELL * cells + 16 * (queries + keys))}; the first row and column name the tokens, and masked pairs are empty`),
    createWeightsKind("npy", `${formatSize(NPY_HEADER + 4 * cells)}; a float32 array for numpy.load, in which masked pairs are NaN`),
    {
      ending: "html",
      problem: host.kind === "site" ? "This page is published: pass on its address." : file && "This page is such a file: pass on a copy of it.",
      describe: () => "A page that works without AttnScope and without a network: this head from far to near as far as it fits, then other heads. At most 12 MB; of a long text it takes a minute.",
      create: () => download(paths.page(meta.trace, layer, head, [...query, ...key], pinQuery, pinKey, writeAddress(store.get()))),
    },
  ];

  /** Wait for tiles that are still loading. */
  const waitForTiles = async (): Promise<void> => {
    const end = performance.now() + WAIT_MILLISECONDS;
    while (!noMapProblem && [map, secondMap].some((one) => one?.element.dataset["state"] === "loading")) {
      if (performance.now() > end) throw new Error("Not all of the map has come yet: save it when it is whole.");
      await new Promise((resolve) => setTimeout(resolve, 50));
      stop.signal.throwIfAborted();
    }
  };
  const save = async ({ ending, create }: FileKind): Promise<void> => {
    // Not disabled meanwhile: a button that is loses the focus, and with it the keyboard.
    if (isSaving) return;
    isSaving = true;
    status.textContent = `Making the ${ending.toUpperCase()} file. Close this dialog to cancel.`;
    try {
      await waitForTiles();
      const made = await create();
      if (stop.signal.aborted) return;
      const name = createFileName(meta, headName, part, ending);
      host.saveFile(name, made);
      status.textContent = `Saved ${name}, ${formatSize(made.size)}.`;
    } catch (error) {
      if (!isAbortError(error)) status.textContent = describeError(error);
    }
    isSaving = false;
  };

  const words = kinds.map(() => element("p", {}));
  const scales = segments(
    "Size of the picture",
    SCALES.map((one) => [one, `${one}×`] as const),
    (chosen) => {
      scale = chosen;
      update();
    },
  );
  const sizes = segments<FigureSize>(
    "Figure",
    [
      ["shown", "as shown", "As large as on the screen"],
      ["single", "single column", "3.25 inches wide"],
      ["double", "double column", "6.75 inches wide"],
      ["own", "own width"],
    ],
    (chosen) => {
      size = chosen;
      update();
    },
  );
  const update = (): void => {
    sizes.update(size);
    scales.element.hidden = size !== "shown";
    figure.hidden = size === "shown";
    ownWidth.hidden = size !== "own";
    scales.update(scale);
    for (const one of SCALES) scales.enable(one, formatPixels(one) !== undefined, "larger than a browser can make it");
    kinds.forEach(({ problem, describe }, index) => words[index]?.replaceChildren(problem || describe()));
  };
  const ownWidth = field("inches", inches);
  const figure = element(
    "div",
    { class: "export-options" },
    ownWidth,
    field("points", points),
    ...FIGURE_PARTS.map((part, index) => element("label", { class: "switch" }, partSwitches[index], ` ${PART_NAMES[part]}`)),
    field("beside other heads", otherHeads),
  );
  const options = element(
    "div",
    {},
    element("div", { class: "export-options" }, sizes.element, scales.element, element("label", { class: "switch" }, white, " on white")),
    figure,
  );
  const dialog = createDialog(
    "export",
    `Save ${headName}`,
    "help export",
    element(
      "ul",
      { class: "export-kinds" },
      ...kinds.map((kind, index) =>
        element(
          "li",
          {},
          button(`Save ${kind.ending.toUpperCase()}`, () => void save(kind), { autofocus: index === 0, disabled: kind.problem !== false }),
          element("div", {}, words[index], index === 0 && options),
        ),
      ),
    ),
    status,
  );
  dialog.addEventListener("close", () => {
    stop.abort();
    dialog.remove();
  });
  context.signal.addEventListener("abort", () => dialog.close(), { signal: stop.signal });
  update();
  root.append(dialog);
  dialog.showModal();
}
