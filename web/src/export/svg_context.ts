// A canvas context that keeps shapes: what is painted on it becomes an SVG, by the painters that paint the screen.
//
// In: the calls of painters. Out: an SVG element. Colours, fonts, transforms and widths of text are kept by a real context, which paints nothing.
// Text becomes text nodes, pictures become PNGs inside the file, unsmoothed; it names nothing outside itself.
// Throws when a painter uses a feature that the SVG would not contain.
import { getHatchLines, HATCH_STEP } from "../paint/hatch";
import type { Surface, Theme } from "../paint/surface";

const SVG = "http://www.w3.org/2000/svg";
/** They change what comes next, or say something about it, and paint nothing. */
const PASSED_THROUGH = new Set(["translate", "rotate", "setLineDash", "measureText"]);

type Values = Readonly<Record<string, string | number>>;
type Context = CanvasRenderingContext2D;

export interface SvgSurface extends Surface {
  readonly element: SVGSVGElement;
}

function createShape(name: string, values: Values = {}): SVGElement {
  const made = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(values)) made.setAttribute(key, typeof value === "number" ? formatShort(value) : value);
  return made;
}

/** A thousandth of a pixel is nothing. */
const formatShort = (value: number): string => String(Math.round(value * 1000) / 1000);

/** A colour as a context says it, in the two attributes that every program reads. */
function toColourAttributes(kind: "fill" | "stroke", colour: string): Values {
  const parts = /^rgba\((\d+), (\d+), (\d+), ([\d.]+)\)$/.exec(colour);
  if (!parts) return { [kind]: colour };
  return { [kind]: `rgb(${parts.slice(1, 4).join(",")})`, [`${kind}-opacity`]: parts[4] ?? "" };
}

/** Images of other sites could not be read: there are none. */
function toDataUrl(source: HTMLCanvasElement): string {
  const canvas = document.createElement("canvas");
  canvas.width = source.width;
  canvas.height = source.height;
  canvas.getContext("2d")?.drawImage(source, 0, 0);
  return canvas.toDataURL("image/png");
}

export function createSvgSurface(width: number, height: number, scale: number): SvgSurface {
  const pen = document.createElement("canvas").getContext("2d");
  if (!pen) throw new Error("This browser gives no 2D canvas.");
  const root = createShape("svg", { width, height, viewBox: `0 0 ${width} ${height}` }) as SVGSVGElement;
  const definitions = createShape("defs");
  root.append(definitions);
  const hatches = new Map<string, string>();
  let [group, path, clips]: [Element, string, number] = [root, "", 0];
  /** A fill that is no colour; null where the pen has it. */
  let fill: string | null = null;
  const saved: [Element, string | null][] = [];

  /** Groups are never turned or moved, so that each shape has all of its transform. */
  const createPlacedShape = (name: string, values: Values): SVGElement => {
    const { a, b, c, d, e, f } = pen.getTransform();
    const matrix = [a, b, c, d, e, f].map((part) => formatShort(part)).join(" ");
    return createShape(name, matrix === "1 0 0 1 0 0" ? values : { ...values, transform: `matrix(${matrix})` });
  };
  const add = (name: string, values: Values): SVGElement => {
    const made = createPlacedShape(name, values);
    group.append(made);
    return made;
  };
  const getFill = (): Values => (fill === null ? toColourAttributes("fill", String(pen.fillStyle)) : { fill, ...(pen.globalAlpha < 1 && { "fill-opacity": pen.globalAlpha }) });
  const getStroke = (): Values => ({
    fill: "none",
    ...toColourAttributes("stroke", String(pen.strokeStyle)),
    "stroke-width": pen.lineWidth,
    ...(pen.lineJoin === "miter" ? {} : { "stroke-linejoin": pen.lineJoin }),
    ...(pen.getLineDash().length > 0 ? { "stroke-dasharray": pen.getLineDash().join(" ") } : {}),
  });
  const write = (text: string, x: number, y: number, values: Values): void => {
    const anchor = { center: "middle", right: "end", end: "end", left: "start", start: "start" }[pen.textAlign];
    const weight = /^(\d+ )?(\d+px) (.*)$/.exec(pen.font);
    const made = add("text", { x, y: y + measureBaselineShift(pen), "text-anchor": anchor, "font-size": weight?.[2] ?? "", "font-family": weight?.[3] ?? "", ...values });
    if (weight?.[1]) made.setAttribute("font-weight", weight[1].trim());
    made.textContent = text;
  };
  const toBoxAttributes = (x: number, y: number, width: number, height: number): Values => ({ x, y, width: Math.max(0, width), height: Math.max(0, height) });

  const own: Partial<Context> = {
    save() {
      saved.push([group, fill]);
      pen.save();
    },
    restore() {
      [group, fill] = saved.pop() ?? [group, fill];
      pen.restore();
    },
    beginPath: () => void (path = ""),
    moveTo: (x, y) => void (path += `M${formatShort(x)} ${formatShort(y)}`),
    lineTo: (x, y) => void (path += `L${formatShort(x)} ${formatShort(y)}`),
    rect: (x, y, width, height) => void (path += `M${formatShort(x)} ${formatShort(y)}h${formatShort(width)}v${formatShort(height)}h${formatShort(-width)}z`),
    // Whole circles alone are painted.
    arc: (x, y, radius) => void (path += `M${formatShort(x - radius)} ${formatShort(y)}a${radius} ${radius} 0 1 0 ${2 * radius} 0a${radius} ${radius} 0 1 0 ${-2 * radius} 0z`),
    fill: () => void add("path", { d: path, ...getFill() }),
    stroke: () => void add("path", { d: path, ...getStroke() }),
    fillRect: (x, y, width, height) => void add("rect", { ...toBoxAttributes(x, y, width, height), ...getFill() }),
    strokeRect: (x, y, width, height) => void add("rect", { ...toBoxAttributes(x, y, width, height), ...getStroke() }),
    fillText: (text, x, y) => write(text, x, y, getFill()),
    strokeText: (text, x, y) => write(text, x, y, getStroke()),
    clip() {
      const id = `attnscope-clip-${++clips}`;
      const area = createShape("clipPath", { id });
      area.append(createPlacedShape("path", { d: path }));
      definitions.append(area);
      const inside = createShape("g", { "clip-path": `url(#${id})` });
      group.append(inside);
      group = inside;
    },
    drawImage: ((source: HTMLCanvasElement, x: number, y: number, width: number, height: number) => {
      const made = add("image", { ...toBoxAttributes(x, y, width, height), preserveAspectRatio: "none" });
      made.style.imageRendering = "pixelated";
      // The old name of the attribute: all programs know it.
      made.setAttributeNS("http://www.w3.org/1999/xlink", "xlink:href", toDataUrl(source));
    }) as Context["drawImage"],
  };
  const context = new Proxy(pen, {
    get(_, name) {
      const mine = own[name as keyof Context];
      if (mine !== undefined) return mine;
      const theirs = pen[name as keyof Context];
      if (typeof theirs !== "function") return theirs;
      if (!PASSED_THROUGH.has(String(name))) throw new Error(`A painter calls ${String(name)}, which is not kept in an SVG.`);
      return (theirs as () => unknown).bind(pen);
    },
    set(_, name, value: unknown) {
      if (name === "fillStyle") fill = typeof value === "string" && value.startsWith("url(") ? value : null;
      if (name !== "fillStyle" || fill === null) Reflect.set(pen, name, value);
      return true;
    },
  });

  const getHatch = ({ hatch: line, hatchGround: ground }: Theme): string => {
    const name = `${line} ${ground}`;
    const id = hatches.get(name) ?? `attnscope-hatch-${hatches.size + 1}`;
    if (!hatches.has(name)) {
      hatches.set(name, id);
      const cell = createShape("pattern", { id, width: HATCH_STEP, height: HATCH_STEP, patternUnits: "userSpaceOnUse" });
      const lines = getHatchLines(HATCH_STEP).map(([x0, y0, x1, y1]) => `M${x0} ${y0}L${x1} ${y1}`);
      cell.append(createShape("rect", { width: HATCH_STEP, height: HATCH_STEP, fill: ground }), createShape("path", { d: lines.join(""), stroke: line }));
      definitions.append(cell);
    }
    return `url(#${id})`;
  };
  return { context, width, height, scale, hatch: getHatch, element: root };
}

/** How far below its baseline a context writes: an SVG's own baselines are read differently by every program. */
function measureBaselineShift(pen: Context): number {
  const baseline = pen.textBaseline;
  const here = pen.measureText("x").actualBoundingBoxAscent;
  pen.textBaseline = "alphabetic";
  const there = pen.measureText("x").actualBoundingBoxAscent;
  pen.textBaseline = baseline;
  return there - here;
}

export function createSvgFile(element: SVGSVGElement): Blob {
  return new Blob(['<?xml version="1.0" encoding="UTF-8"?>\n', new XMLSerializer().serializeToString(element)], { type: "image/svg+xml" });
}
