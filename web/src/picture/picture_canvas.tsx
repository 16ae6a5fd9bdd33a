/** The canvases of the picture view: one that only shows, and the large one, which takes pointer and keys. */

import type { JSX } from "preact";
import { useLayoutEffect, useRef, useState } from "preact/hooks";
import { getEnlargement, prepareSurface } from "../paint/canvas";
import { themes } from "../paint/surface";
import type { ViewContext } from "../panels/view_context";
import { findPatchAt, paintPicture, type Picture, type PictureMarks } from "./paint_picture";
import type { Patch } from "./patch_values";
import type { LoadedOptions } from "./picture_options";

interface CanvasOptions {
  readonly context: ViewContext;
  readonly picture: Picture;
  readonly marks: PictureMarks;
  readonly aspect: number;
  readonly width: number;
}

export function PictureCanvas({ context, picture, marks, aspect, width }: CanvasOptions): JSX.Element {
  const canvas = useRef<HTMLCanvasElement>(null);
  const height = Math.round(width / aspect);
  useLayoutEffect(() => {
    if (!canvas.current) return;
    const surface = prepareSurface(canvas.current, width, height);
    if (surface) paintPicture(surface, { left: 0, top: 0, width, height }, picture, themes[context.host.getTheme()], marks);
  });
  return <canvas ref={canvas} aria-hidden="true" style={{ width: `${width}px`, height: `${height}px` }} />;
}

/** The large picture: fills its place, and takes pointer and keys. */
export function MainPicture(options: LoadedOptions & Pick<CanvasOptions, "picture" | "marks" | "aspect">): JSX.Element {
  const { local, picture, marks, aspect, isReady, set, choose, context } = options;
  const place = useRef<HTMLDivElement>(null);
  const [room, setRoom] = useState<readonly [width: number, height: number]>([0, 0]);
  useLayoutEffect(() => {
    const { current } = place;
    if (!current) return;
    const observer = new ResizeObserver(() => setRoom([current.clientWidth, current.clientHeight]));
    observer.observe(current);
    setRoom([current.clientWidth, current.clientHeight]);
    return () => observer.disconnect();
  }, []);
  const width = Math.max(1, Math.floor(Math.min(room[0], room[1] * aspect)));
  const height = Math.round(width / aspect);
  const findAt = (event: PointerEvent): Patch | null => {
    const target = event.currentTarget as HTMLElement;
    const { left, top } = target.getBoundingClientRect();
    const enlargement = getEnlargement(target);
    return findPatchAt(picture, { left: 0, top: 0, width, height }, (event.clientX - left) / enlargement, (event.clientY - top) / enlargement);
  };
  return (
    <div class="picture-place" ref={place}>
      <div
        class="picture-main"
        tabIndex={0}
        role="application"
        data-state={isReady ? "ready" : "loading"}
        aria-label={`Image, ${picture.rows} by ${picture.columns} patches. Arrow keys move, Enter pins, Shift and arrow keys choose a region.`}
        style={{ width: `${width}px`, height: `${height}px` }}
        onPointerDown={(event) => {
          const at = findAt(event);
          if (event.button !== 0 || !at) return;
          event.currentTarget.setPointerCapture(event.pointerId);
          set({ corner: at, cursor: at });
        }}
        onPointerMove={(event) => {
          const at = findAt(event) ?? (local.corner ? local.cursor : null);
          if (at?.row !== local.cursor?.row || at?.column !== local.cursor?.column) set({ cursor: at });
        }}
        onPointerUp={() => local.corner && local.cursor && choose(local.corner, local.cursor)}
        onPointerCancel={() => set({ corner: null })}
        onPointerLeave={() => !local.corner && set({ cursor: null })}
      >
        <PictureCanvas {...{ context, picture, marks, aspect, width }} />
      </div>
    </div>
  );
}
