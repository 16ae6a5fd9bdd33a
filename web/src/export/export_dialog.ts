/**
 * The export dialog: the picture, the weights in view, or a page of its own, each with what it holds and how large it is.
 *
 * In: the map and its head. Out: a file, saved by the host. Closing the dialog cancels.
 */

import { computePixelSize, createPng, createSvg, type ImageOptions } from "./image_files";
import { createCaption, createFileName } from "./captions";
import type { TokenRanges } from "../geometry/zoom_plan";
import type { MapView } from "../map/map_view";
import { formatCount, pluralize } from "../format_numbers";
import { darkTheme, lightTheme } from "../paint/surface";
import { formatTitle, isolateDirection } from "../paint/token_text";
import { segments } from "../panels/controls";
import { createDialog } from "../panels/dialog";
import { button, element } from "../panels/dom";
import type { ViewContext } from "../panels/view_context";
import { describeError } from "../server/requests";
import { formatHeadName, paths, type BlockFormat, type TraceHead } from "../server/protocol";
import { isAbortError } from "../server/transport";
import { writeAddress } from "../state";

const MAX_CELLS = 4_194_304;
/** Letters of a cell in a table: digits, point, exponent, comma. */
const CHARACTERS_PER_CELL = 14;
const NPY_HEADER = 128;
const WAIT_MILLISECONDS = 10_000;
const SCALES = ["1", "2", "3", "4"] as const;

/** A kind of file: why it cannot be made, or what it holds; and how it is made. */
interface FileKind {
  readonly ending: string;
  readonly problem: string | false;
  describe(): string;
  create(): Promise<Blob>;
}

const formatSize = (bytes: number): string => (bytes < 1e6 ? `${formatCount(Math.ceil(bytes / 1000))} KB` : `${(bytes / 1e6).toFixed(1)} MB`);

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
  let isSaving = false;

  const getImageOptions = (): ImageOptions => {
    const other = compare && traces.getKnown(compare.trace || trace);
    // Name the text of the second head if it is another one.
    const of = compare?.trace && other ? ` ${isolateDirection(formatTitle(other.name, 24))}` : "";
    const heads = compare && other ? [headName, formatHeadName(other, compare.layer, compare.head) + of] : [headName];
    return {
      maps: secondMap ? [map, secondMap] : [map],
      theme: white.checked || host.getTheme() === "light" ? lightTheme : darkTheme,
      caption: createCaption({ meta, heads, part, painted: map.painted(), version: context.session.version }),
    };
  };
  const formatPixels = (at: string): string | undefined => computePixelSize(getImageOptions(), Number(at))?.map(formatCount).join(" × ");
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
      describe: () => `The map as it is, with a line of words below it: ${formatPixels(scale) ?? "too many"} pixels.`,
      create: () => createPng(getImageOptions(), Number(scale)),
    },
    {
      ending: "svg",
      problem: noMapProblem,
      describe: () => "The same as a drawing that can be enlarged and edited: names and lines are shapes, the weights are one picture with a pixel for each.",
      create: async () => createSvg(getImageOptions()),
    },
    createWeightsKind("csv", `up to ${formatSize(CHARACTERS_PER_CELL * cells + 16 * (queries + keys))}; the first row and column name the tokens, and masked pairs are empty`),
    createWeightsKind("npy", `${formatSize(NPY_HEADER + 4 * cells)}; a float32 array for numpy.load, in which masked pairs are NaN`),
    {
      ending: "html",
      problem: file && "This page is such a file: pass on a copy of it.",
      describe: () => "A page that works without AttnScope and without a network: this head from far to near as far as it fits, then other heads. At most 12 MB; of a long text it takes a minute.",
      create: () => download(paths.page(meta.trace, layer, head, [...query, ...key], pinQuery, pinKey, writeAddress(store.get()))),
    },
  ];

  /** Wait for tiles that are still loading. */
  const waitForTiles = async (): Promise<void> => {
    const end = performance.now() + WAIT_MILLISECONDS;
    while (!noMapProblem && getImageOptions().maps.some(({ element: drawn }) => drawn.dataset["state"] === "loading")) {
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
  const update = (): void => {
    scales.update(scale);
    for (const one of SCALES) scales.enable(one, formatPixels(one) !== undefined, "larger than a browser can make it");
    kinds.forEach(({ problem, describe }, index) => words[index]?.replaceChildren(problem || describe()));
  };
  const options = element("div", { class: "export-options" }, scales.element, element("label", { class: "switch" }, white, " on white"));
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
