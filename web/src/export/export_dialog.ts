/**
 * The export dialog: the picture, the weights in view, or a page of its own, each with what it holds and how large it is.
 *
 * In: the map and what it shows. Out: a file, handed to the host. Closing the dialog gives up what is being made.
 */

import { pixelsAt, pngOf, svgOf, type Order } from "./image_files";
import { captionOf, fileName, type Part } from "./captions";
import type { MapView } from "../map/map_view";
import { counted, plural } from "../format_numbers";
import { dark, light } from "../paint/surface";
import { isolated, title } from "../paint/token_text";
import { segments } from "../panels/controls";
import { button, element } from "../panels/dom";
import type { Shown } from "../panels/inspector";
import type { ViewContext } from "../panels/view_context";
import { told } from "../server/requests";
import { headName, paths, type BlockFormat } from "../server/protocol";
import { aborted } from "../server/transport";
import { writeAddress } from "../state";

const MOST_CELLS = 4_194_304;
/** Letters of a cell in a table: digits, point, exponent, comma. */
const LETTERS = 14;
const NPY_HEADER = 128;
const WAIT_MILLISECONDS = 10_000;
const SCALES = ["1", "2", "3", "4"] as const;

/** A kind of file: why it cannot be made, or what it holds; and how it is made. */
interface Kind {
  readonly ending: string;
  readonly why: string | false;
  holds(): string;
  make(): Promise<Blob>;
}

const size = (bytes: number): string => (bytes < 1e6 ? `${counted(Math.ceil(bytes / 1000))} KB` : `${(bytes / 1e6).toFixed(1)} MB`);

/** `twin` is the map beside it, where two are shown. */
export function openExport(context: ViewContext, map: MapView, shown: Shown, root: HTMLElement, twin: MapView | null): void {
  const { host, store, traces } = context;
  const { meta, layer, head } = shown;
  const { compare: chosen, pinQuery, pinKey, trace, view } = store.get();
  const compare = view === "map" ? chosen : null;
  const own = headName(meta, layer, head);
  const unseen = map.element.clientWidth === 0 && "Open the map to save it as a picture.";
  const about = meta.layers[layer];
  // Where there is no map, nothing of it is in view: then it is about all.
  const part: Part = unseen ? { query: [0, about?.queries ?? 0], key: [0, about?.keys ?? 0] } : map.visible();
  const { query, key } = part;
  const white = element("input", { type: "checkbox", checked: true });
  const says = element("p", { class: "export-says", role: "status" });
  const stop = new AbortController();
  let scale: (typeof SCALES)[number] = "2";
  let making = false;

  const order = (): Order => {
    const other = compare && traces.known(compare.trace || trace);
    // Of another text it is said of which.
    const of = compare?.trace && other ? ` ${isolated(title(other.name, 24))}` : "";
    const heads = compare && other ? [own, headName(other, compare.layer, compare.head) + of] : [own];
    return {
      maps: twin ? [map, twin] : [map],
      theme: white.checked || host.theme() === "light" ? light : dark,
      caption: captionOf({ meta, heads, part, painted: map.painted(), version: context.session.version }),
    };
  };
  const pixels = (at: string): string | undefined => pixelsAt(order(), Number(at))?.map(counted).join(" × ");
  const asked = async (path: string): Promise<Blob> => new Blob([(await context.transport.bytes(path, stop.signal)) ?? ""]);

  const file = host.kind === "file";
  const inView = unseen ? "" : " in view";
  const [queries, keys] = [query[1] - query[0], key[1] - key[0]];
  const cells = queries * keys;
  const weights = (ending: BlockFormat, about: string): Kind => ({
    ending,
    why: file
      ? "This page was saved to a file, which does not hold exact weights. Open the trace with AttnScope for them."
      : cells > MOST_CELLS && `There are ${counted(cells)} pairs${inView}, and ${counted(MOST_CELLS)} fit into a file: ${unseen ? "open the map and " : ""}zoom in.`,
    holds: () => `Exact weights of ${own}, of all pairs${inView}: ${plural(queries, "query", "queries")} × ${plural(keys, "key")}, ${about}.`,
    make: () => asked(paths.block(meta.trace, layer, head, ...query, ...key, ending)),
  });
  const kinds: Kind[] = [
    {
      ending: "png",
      why: unseen,
      holds: () => `The map as it is, with a line of words below it: ${pixels(scale) ?? "too many"} pixels.`,
      make: () => pngOf(order(), Number(scale)),
    },
    {
      ending: "svg",
      why: unseen,
      holds: () => "The same as a drawing that can be enlarged and edited: names and lines are shapes, the weights are one picture with a pixel for each.",
      make: async () => svgOf(order()),
    },
    weights("csv", `up to ${size(LETTERS * cells + 16 * (queries + keys))}; the first row and column name the tokens, and masked pairs are empty`),
    weights("npy", `${size(NPY_HEADER + 4 * cells)}; a float32 array for numpy.load, in which masked pairs are NaN`),
    {
      ending: "html",
      why: file && "This page is such a file: pass on a copy of it.",
      holds: () => "A page that works without AttnScope and without a network: this head from far to near as far as it fits, then other heads. At most 12 MB; of a long text it takes a minute.",
      make: () => asked(paths.page(meta.trace, layer, head, [...query, ...key], pinQuery, pinKey, writeAddress(store.get()))),
    },
  ];

  /** Tiles may be on their way: half a picture would be a wrong one. */
  const settled = async (): Promise<void> => {
    const end = performance.now() + WAIT_MILLISECONDS;
    while (!unseen && order().maps.some(({ element: drawn }) => drawn.dataset["state"] === "loading")) {
      if (performance.now() > end) throw new Error("Not all of the map has come yet: save it when it is whole.");
      await new Promise((resolve) => setTimeout(resolve, 50));
      stop.signal.throwIfAborted();
    }
  };
  const save = async ({ ending, make }: Kind): Promise<void> => {
    // Not disabled meanwhile: a button that is loses the focus, and with it the keyboard.
    if (making) return;
    making = true;
    says.textContent = `Making the ${ending.toUpperCase()} file. Closing this gives it up.`;
    try {
      await settled();
      const made = await make();
      if (stop.signal.aborted) return;
      const name = fileName(meta, own, part, ending);
      host.save(name, made);
      says.textContent = `Saved ${name}, ${size(made.size)}.`;
    } catch (error) {
      if (!aborted(error)) says.textContent = told(error);
    }
    making = false;
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
    for (const one of SCALES) scales.enable(one, pixels(one) !== undefined, "larger than a browser can make it");
    kinds.forEach(({ why, holds }, index) => words[index]?.replaceChildren(why || holds()));
  };
  const options = element("div", { class: "export-options" }, scales.element, element("label", { class: "switch" }, white, " on white"));
  const dialog = element(
    "dialog",
    { class: "help export", "aria-labelledby": "export-title" },
    element(
      "div",
      { class: "help-head" },
      element("h2", { id: "export-title" }, `Save ${own}`),
      button("Close", () => dialog.close(), { class: "help-close" }),
    ),
    element(
      "ul",
      { class: "export-kinds" },
      ...kinds.map((kind, index) =>
        element(
          "li",
          {},
          button(`Save ${kind.ending.toUpperCase()}`, () => void save(kind), { autofocus: index === 0, disabled: kind.why !== false }),
          element("div", {}, words[index], index === 0 && options),
        ),
      ),
    ),
    says,
  );
  dialog.addEventListener("click", (event) => {
    if (event.target === dialog) dialog.close();
  });
  dialog.addEventListener("close", () => {
    stop.abort();
    dialog.remove();
  });
  context.signal.addEventListener("abort", () => dialog.close(), { signal: stop.signal });
  update();
  root.append(dialog);
  dialog.showModal();
}
