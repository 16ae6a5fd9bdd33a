/** The controls, the large picture, and a small one for each head of the layer. */

import type { JSX } from "preact";
import { useLayoutEffect } from "preact/hooks";
import { useResponse } from "../evidence/use_response";
import { createPng, createSvg } from "../export/image_files";
import { formatPercent, formatWeight } from "../format_numbers";
import { themes } from "../paint/surface";
import { formatTitle } from "../paint/token_text";
import { formatHeadName, paths, type Patches, type PatchSide, type PictureMap, type Sink } from "../server/protocol";
import type { PictureKind } from "../state";
import type { Picture, PictureMarks } from "./paint_picture";
import { decodeValues, findLargest, findPatch, findRegion, getFrame, hidePositions, sumBox, toBox, type Patch } from "./patch_values";
import { MainPicture, PictureCanvas } from "./picture_canvas";
import { createPictureDrawing, createPictureFileName } from "./picture_file";
import { Elsewhere, Legend, Sinks, Specials } from "./picture_lists";
import type { LayerOptions, LoadedOptions, PicturePanelOptions } from "./picture_options";
import { choosePositions } from "./picture_state";
import { describeCursor, describePicture } from "./picture_words";

const SMALL_WIDTH = 120;
const KINDS: readonly (readonly [PictureKind, string, string])[] = [
  ["query", "Attends to", "What the pinned patch or word attends to on the image"],
  ["key", "Attended by", "Which patches attend to the pinned patch or word"],
  ["received", "All queries", "What all queries attend to, as a mean"],
  ["rollout", "Rollout", "Attention rollout through the layers up to this one (Abnar & Zuidema, 2020)"],
];
const SAVED_PAGE = "This page was saved without the picture of this layer. Open the trace itself with AttnScope for that.";

export function PicturePanel(options: PicturePanelOptions): JSX.Element {
  const { context, shown, state, image } = options;
  const { transport, store } = context;
  if (!image) return <p class="map-words">This trace has no image.</p>;
  if (transport.hasResponse && !transport.hasResponse(paths.patches(shown.meta.trace, shown.layer, image.image))) return <p class="map-words">{SAVED_PAGE}</p>;
  if (!image.layers.includes(shown.layer)) {
    const near = image.layers.reduce((best, layer) => (Math.abs(layer - shown.layer) < Math.abs(best - shown.layer) ? layer : best), image.layers[0] ?? 0);
    return (
      <p class="map-words">
        Layer {formatTitle(shown.meta.layers[shown.layer]?.name ?? "", 80)} has no patches of this image.{" "}
        <button type="button" onClick={() => store.set({ layer: near, head: Math.min(state.head, (shown.meta.layers[near]?.heads ?? 1) - 1) }, "push")}>
          Go to layer {formatTitle(shown.meta.layers[near]?.name ?? "", 80)}
        </button>
      </p>
    );
  }
  return <LayerPicture {...options} image={image} />;
}

function LayerPicture(options: LayerOptions): JSX.Element {
  const { context, shown, state, local, image, cache, setPatches } = options;
  const { trace } = shown.meta;
  const patchPath = paths.patches(trace, shown.layer, image.image);
  const patchResponse = useResponse(patchPath, (signal) => cache.json<Patches>(patchPath, signal));
  const patches = patchResponse.isStale ? null : patchResponse.value;
  useLayoutEffect(() => setPatches(patches), [patches]);
  const photo = useResponse(image.size ? paths.photo(trace, image.image) : null, async (signal) => decodePhoto(await context.transport.bytes(paths.photo(trace, image.image), signal)));
  const sinkPath = paths.sinks(trace, shown.layer, image.image);
  const sinks = useResponse(sinkPath, (signal) => cache.json<Sink[]>(sinkPath, signal));
  const chosen = patches && choosePositions(state, patches);
  const mapPath = chosen && paths.picture(trace, shown.layer, image.image, chosen.kind, chosen.positions);
  const map = useResponse(mapPath, async (signal) => {
    const found = await cache.json<PictureMap>(mapPath ?? "", signal);
    return { found, values: decodeValues(found) };
  });
  const problem = patchResponse.problem ?? map.problem ?? photo.problem;
  const side = chosen && patches ? patches[chosen.kind === "key" ? "query" : "key"] : null;
  const isWhole = map.value !== null && side !== null && map.value.values.length === map.value.found.heads * side.positions.length;
  const isReady = isWhole && !map.isStale && (image.size === null || photo.value !== null);
  const known = sinks.isStale ? [] : (sinks.value ?? []);
  return (
    <>
      <Bar {...options} side={side} />
      {problem !== null && (
        <p class="text-note" role="status">
          {formatTitle(problem, 300)}
        </p>
      )}
      {isWhole && patches && side && chosen && map.value && (
        <Loaded {...options} {...{ patches, side, chosen, isReady, sinks: known, map: map.value.found, values: map.value.values, photo: photo.value, frame: Math.min(local.frame, side.grid[0] - 1) }} />
      )}
    </>
  );
}

async function decodePhoto(body: ArrayBuffer | null): Promise<HTMLCanvasElement> {
  const bitmap = await createImageBitmap(new Blob([body ?? ""], { type: "image/png" }), { colorSpaceConversion: "none" });
  const canvas = document.createElement("canvas");
  [canvas.width, canvas.height] = [bitmap.width, bitmap.height];
  canvas.getContext("2d")?.drawImage(bitmap, 0, 0);
  return canvas;
}

function Bar({ context, state, local, shown, side, set }: LayerOptions & { readonly side: PatchSide | null }): JSX.Element {
  const { store } = context;
  const { images } = shown.meta;
  const frames = side?.grid[0] ?? 1;
  return (
    <div class="bar picture-bar">
      <div class="segments" role="group" aria-label="What the picture shows">
        {KINDS.map(([kind, name, title]) => (
          <button key={kind} type="button" class="toggle" title={title} aria-pressed={state.pictureKind === kind} onClick={() => store.set({ pictureKind: kind }, "push")}>
            {name}
          </button>
        ))}
      </div>
      <button
        type="button"
        class="toggle"
        aria-pressed={state.hideSink}
        title="Leave out patches that receive at least 5% of all attention in a head, so that the colours show the rest (k)"
        onClick={() => store.set({ hideSink: !state.hideSink }, "push")}
      >
        Hide sinks
      </button>
      {images.length > 1 && (
        <label class="field">
          <span>image</span>
          <select value={local.image} onChange={({ currentTarget }) => set({ image: Number(currentTarget.value), frame: 0, cursor: null, corner: null })}>
            {images.map(({ image }, index) => (
              <option key={image} value={index}>
                {image}
              </option>
            ))}
          </select>
        </label>
      )}
      {frames > 1 && (
        <label class="field">
          <span>frame</span>
          <input type="range" min={0} max={frames - 1} value={Math.min(local.frame, frames - 1)} aria-valuetext={`frame ${local.frame} of ${frames}`} onInput={({ currentTarget }) => set({ frame: currentTarget.valueAsNumber })} />
          <span>{Math.min(local.frame, frames - 1)}</span>
        </label>
      )}
      <label class="field">
        <span>opacity</span>
        <input type="range" min={0} max={1} step={0.05} value={local.opacity} onInput={({ currentTarget }) => set({ opacity: currentTarget.valueAsNumber })} />
      </label>
    </div>
  );
}

function Loaded(options: LoadedOptions): JSX.Element {
  const { context, shown, state, local, patches, side, chosen, sinks, map, values, photo, frame, image, set } = options;
  const hidden = new Set(state.hideSink && chosen.kind !== "key" ? sinks.map(({ position }) => position) : []);
  const visible = hidePositions(values, side, hidden);
  const [, rows, columns] = side.grid;
  const single = map.heads === 1;
  const frameSize = side.positions.length;
  const headOf = (head: number): Picture => {
    const own = single ? 0 : head;
    const largest = findLargest(local.oneScale ? visible : visible.subarray(own * frameSize, (own + 1) * frameSize));
    return {
      ...{ photo, rows, columns, part: side.box, largest, colours: state.colours, opacity: local.opacity },
      values: getFrame(visible, map, own, frame),
    };
  };
  const picture = headOf(state.head);
  const findMark = (on: PatchSide | null, position: number | null): Patch | null => {
    const found = on && position !== null ? findPatch(on, position) : null;
    return found && found.frame === frame ? found : null;
  };
  const marks: PictureMarks = {
    query: findMark(patches.query, chosen.kind === "key" ? null : (chosen.positions?.[0] ?? null)),
    key: findMark(patches.key, chosen.kind === "key" ? (chosen.positions?.[0] ?? null) : state.pinKey),
    cursor: local.cursor,
    region: local.corner && local.cursor ? toBox(local.corner, local.cursor) : patches.key && findRegion(patches.key, frame, state.region),
  };
  const title = describePicture(options);
  const [left, top, right, bottom] = side.box;
  const aspect = image.size ? image.size[1] / image.size[0] : columns / (right - left) / (rows / (bottom - top));
  const headName = formatHeadName(shown.meta, shown.layer, state.head);
  const region = marks.region && !local.corner && chosen.kind !== "key" && chosen.kind !== "rollout" ? sumBox(getFrame(values, map, single ? 0 : state.head, frame), columns, marks.region) : null;
  const save = async (ending: "png" | "svg"): Promise<void> => {
    const caption = `${formatTitle(shown.meta.name, 60)} \u00b7 ${single ? "" : `${headName} \u00b7 `}${title} \u00b7 0 to ${formatWeight(picture.largest)} \u00b7 AttnScope ${context.session.version}`;
    const drawing = createPictureDrawing(picture, { ...marks, cursor: null }, aspect, themes[context.host.getTheme()], caption);
    try {
      const made = ending === "png" ? await createPng(drawing, 2) : createSvg(drawing);
      context.host.saveFile(createPictureFileName(shown.meta, single ? "rollout" : headName, chosen.kind, ending), made);
    } catch (error) {
      context.showNotice(error instanceof Error ? error.message : "The picture could not be saved.");
    }
  };
  return (
    <div class="picture-body">
      <div class="picture-left">
        <p class="picture-title">
          {single ? "" : <strong>{headName} </strong>}
          {title}
        </p>
        <MainPicture {...options} {...{ picture, marks, aspect }} />
        <p class="picture-reading">{describeCursor(options, picture)}</p>
      </div>
      <div class="picture-right" role="region" aria-label="Heads and the rest of the attention" tabindex={0}>
        <Legend state={state} largest={picture.largest} isRollout={single} />
        {region !== null && (
          <p class="picture-region">
            The region has <strong>{formatPercent(region)}</strong> {chosen.kind === "received" ? "of all attention" : "of this query"} in {headName}. The heads are ranked by it.{" "}
            <button type="button" onClick={() => context.store.set({ region: "" }, "push")}>
              Remove the region
            </button>
          </p>
        )}
        <Elsewhere {...options} />
        <Specials {...options} />
        <Sinks {...options} />
        {!single && (
          <section aria-label="All heads of the layer">
            <h3>All heads of the layer</h3>
            <label class="switch">
              <input type="checkbox" checked={local.oneScale} onChange={({ currentTarget }) => set({ oneScale: currentTarget.checked })} /> one colour scale
            </label>
            <div class="picture-heads">
              {Array.from({ length: map.heads }, (_, head) => headOf(head)).map((small, head) => (
                <button
                  key={head}
                  type="button"
                  aria-current={head === state.head ? "true" : undefined}
                  onClick={() => context.store.set({ head }, "push")}
                >
                  <PictureCanvas {...{ context, aspect, marks: { ...marks, cursor: null }, picture: small, width: SMALL_WIDTH }} />
                  <span>
                    {formatHeadName(shown.meta, shown.layer, head)}, up to {formatWeight(findLargest(small.values))}
                  </span>
                </button>
              ))}
            </div>
          </section>
        )}
        <p class="picture-save">
          <button type="button" title="The large picture with the photo, and a line about it" onClick={() => void save("png")}>
            Save PNG
          </button>{" "}
          <button type="button" title="The same as a drawing: each patch is a pixel of one picture" onClick={() => void save("svg")}>
            Save SVG
          </button>
        </p>
      </div>
    </div>
  );
}
