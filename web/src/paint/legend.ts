// The legend: the colour bar with weights and bits, what a colour is the mean or maximum of, and what the hatch and the dots mean.
import { entryOf, tableOf, type Scale, type Table } from "./colour";
import { paintHatch } from "./hatch";
import { fonts, type Box, type Surface, type Theme } from "./surface";
import { fitted, widthOf } from "./words";

export interface Legend {
  scale: Scale;
  stride: number;
  channel: "mean" | "max";
  dots: boolean;
  masked: boolean;
  /** The weight under the pointer, marked on the bar; null when there is none. */
  marked: number | null;
  /** What else is to be said, e.g. the share of a hidden sink. */
  remark: string | null;
}

const BAR = 10;
const font = `11px ${fonts.text}`;

/** What one colour stands for, in words. */
export function meaningOf(stride: number, channel: "mean" | "max", linear: boolean): string {
  const scale = linear ? "linear" : "log2";
  if (stride === 1) return `weight of one pair, ${scale}`;
  return `${channel} of ${stride}\u00d7${stride} pairs, ${scale}`;
}

/** A weight for people: three digits, never a false zero. */
export function weightText(value: number): string {
  if (value === 0) return "0";
  if (value >= 0.9995) return value.toFixed(value >= 0.99995 ? 0 : 4);
  if (value >= 0.001) return value.toPrecision(3).replace(/0+$/, "").replace(/\.$/, "");
  return value.toExponential(1).replace("e-", "e\u2212");
}

function exponent(bits: number): string {
  const digits = "⁰¹²³⁴⁵⁶⁷⁸⁹";
  const whole = Math.round(bits * 10) / 10;
  if (whole === 0) return "1";
  const text = String(Math.abs(whole)).replace(/\d/g, (digit) => digits[Number(digit)] ?? "").replace(".", "\u02d9");
  return `2${whole < 0 ? "\u207b" : ""}${text}`;
}

/** Where the bar is written on: share along it, and the text. */
export function barTicks(scale: Scale): [share: number, text: string][] {
  const [low, high] = scale.range;
  if (scale.linear) return [0, 0.25, 0.5, 0.75, 1].map((share) => [share, weightText(share * 2 ** high)]);
  const width = high - low;
  const step = [0.5, 1, 2, 5, 10].find((one) => width / one <= 5) ?? 10;
  const bits: number[] = [];
  for (let at = Math.ceil(low / step) * step; at <= high + 1e-9; at += step) bits.push(at);
  return bits.map((at) => [(at - low) / width, exponent(at)]);
}

export function paintLegend(surface: Surface, box: Box, theme: Theme, legend: Legend): void {
  const { context } = surface;
  const width = Math.max(80, Math.min(280, box.width * 0.45));
  const bar = { left: box.left, top: box.top + 16, width, height: BAR };
  paintBar(surface, bar, theme, legend);
  context.textAlign = "left";
  context.textBaseline = "middle";
  let x = bar.left + bar.width + 24;
  const end = box.left + box.width;
  const y = bar.top + BAR / 2;
  const say = (text: string, colour: string): void => {
    if (end - x < 24) return;
    const shown = fitted(context, font, text, end - x);
    x += widthOf(context, font, shown) + 16;
    context.font = font;
    context.fillStyle = colour;
    context.fillText(shown, x - widthOf(context, font, shown) - 16, y);
  };
  if (legend.masked) {
    const sample = { left: x, top: y - 6, width: 18, height: 12 };
    paintHatch(surface, sample, theme);
    context.strokeStyle = theme.line;
    context.lineWidth = 1;
    context.strokeRect(sample.left + 0.5, sample.top + 0.5, sample.width - 1, sample.height - 1);
    x += 24;
    say("masked", theme.muted);
  }
  if (legend.dots) {
    context.fillStyle = "#000000";
    context.fillRect(x, y - 2.5, 5, 5);
    context.fillStyle = "#ffffff";
    context.fillRect(x + 1, y - 1.5, 3, 3);
    x += 11;
    say("a link of 0.1 or more inside, hidden by the mean", theme.muted);
  }
  if (legend.remark) {
    context.textBaseline = "alphabetic";
    context.font = font;
    context.fillStyle = theme.ink;
    context.fillText(fitted(context, font, legend.remark, end - bar.left - width - 24), bar.left + width + 24, bar.top + BAR + 14);
  }
}

const bars = new WeakMap<Table, OffscreenCanvas>();

/** The 256 entries as a picture one pixel high. */
function barOf(table: Table): OffscreenCanvas {
  let bar = bars.get(table);
  if (!bar) {
    const image = new ImageData(256, 1);
    for (let entry = 0; entry < 256; entry++) {
      image.data.set(table.subarray(entry * 3, entry * 3 + 3), entry * 4);
      image.data[entry * 4 + 3] = 255;
    }
    bar = new OffscreenCanvas(256, 1);
    bar.getContext("2d")?.putImageData(image, 0, 0);
    bars.set(table, bar);
  }
  return bar;
}

function paintBar(surface: Surface, bar: Box, theme: Theme, legend: Legend): void {
  const { context } = surface;
  context.imageSmoothingEnabled = false;
  context.drawImage(barOf(tableOf(legend.scale.colours)), bar.left, bar.top, bar.width, bar.height);
  context.font = `10px ${fonts.text}`;
  context.fillStyle = theme.muted;
  context.textBaseline = "alphabetic";
  for (const [share, text] of barTicks(legend.scale)) {
    const x = bar.left + share * bar.width;
    context.fillStyle = theme.line;
    context.fillRect(Math.round(x) - (share === 1 ? 1 : 0), bar.top + bar.height, 1, 3);
    context.fillStyle = theme.muted;
    context.textAlign = share < 0.02 ? "left" : share > 0.98 ? "right" : "center";
    context.fillText(text, x, bar.top + bar.height + 13);
  }
  context.textAlign = "left";
  context.font = font;
  context.fillStyle = theme.ink;
  context.fillText(meaningOf(legend.stride, legend.channel, legend.scale.linear), bar.left, bar.top - 4);
  if (legend.marked !== null) paintMark(surface, bar, theme, entryOf(legend.marked, legend.scale) / 255);
}

function paintMark(surface: Surface, bar: Box, theme: Theme, share: number): void {
  const { context } = surface;
  const x = bar.left + share * bar.width;
  context.fillStyle = theme.ink;
  context.beginPath();
  context.moveTo(x, bar.top + 3);
  context.lineTo(x - 4, bar.top - 3);
  context.lineTo(x + 4, bar.top - 3);
  context.fill();
}
