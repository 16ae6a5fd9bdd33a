/** A canvas that is painted again when what it shows, its size or the theme changes. */

import { useEffect, useLayoutEffect, useRef } from "preact/hooks";
import type { CanvasHTMLAttributes, JSX } from "preact";
import { prepareSurface } from "../paint/canvas";
import { themes, type Surface, type Theme } from "../paint/surface";
import type { HostContext } from "../host";

export type Paint = (surface: Surface, theme: Theme) => void;

export interface CanvasOptions extends CanvasHTMLAttributes<HTMLCanvasElement> {
  readonly context: HostContext;
  readonly paint: Paint;
}

export function Canvas({ context, paint, ...attributes }: CanvasOptions): JSX.Element {
  const own = useRef<HTMLCanvasElement>(null);
  const latest = useRef(paint);
  latest.current = paint;
  const draw = useRef(() => {
    const canvas = own.current;
    if (!canvas || canvas.clientWidth * canvas.clientHeight === 0) return;
    const surface = prepareSurface(canvas, canvas.clientWidth, canvas.clientHeight);
    if (surface) latest.current(surface, themes[context.host.getTheme()]);
  });
  useLayoutEffect(() => draw.current());
  useEffect(() => {
    const controller = new AbortController();
    const observer = new ResizeObserver(() => draw.current());
    if (own.current) observer.observe(own.current);
    context.host.onThemeChange(() => draw.current(), controller.signal);
    return () => {
      observer.disconnect();
      controller.abort();
    };
  }, []);
  return <canvas ref={own} {...attributes} />;
}
