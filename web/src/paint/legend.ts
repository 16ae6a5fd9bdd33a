// The legend: the colour bar with weights and bits, what a colour is the mean or maximum of, and what the hatch and the dots mean.
import { getEntry, getTable, TOO_SMALL_GREY, type ColourScale, type ColourTable } from "./colour";
import { paintHatch } from "./hatch";
import { MIN_BITS } from "../tiles/ratio_codec";
import { formatCount, formatLog2Ratio, formatWeight, toSuperscript } from "../format_numbers";
import type { Box } from "../geometry/box";
import { fonts, type Surface, type Theme } from "./surface";
import { fitText, measureWidth } from "./canvas_text";

export interface LegendContent {
  scale: ColourScale;
  /** 0: bins of no one size. */
  stride: number;
  channel: "mean" | "max";
  dots: boolean;
  masked: boolean;
  /** The weight under the pointer, marked on the bar; null when there is none. */
  marked: { weight: number; keys: number } | null;
  /** Further remarks, e.g. the share of a hidden sink; each in versions from long to short. */
  remarks: readonly (readonly string[])[];
}

const BAR_HEIGHT = 10;
const font = `11px ${fonts.text}`;
const tickFont = `10px ${fonts.text}`;

/** What one colour stands for, in words. */
function describeColour({ stride, channel, scale }: LegendContent): string {
  const pooled = channel === "max" ? "largest" : channel;
  if (scale.colours === "ratio") return stride === 1 ? "log2(A / B) of one pair" : `log2(A / B) of the ${pooled} of ${stride}\u00d7${stride} pairs`;
  const bin = stride === 0 ? `${pooled} of a bin` : `${pooled} of ${stride}\u00d7${stride} pairs`;
  return `${stride === 1 ? "weight of one pair" : bin}, ${{ log: "log2", linear: "linear", uniform: "relative to uniform" }[scale.kind]}`;
}

function formatPower(bits: number): string {
  const rounded = Math.round(bits * 10) / 10;
  return rounded === 0 ? "1" : `2${toSuperscript(String(rounded))}`;
}

/** Where the bar is written on: share along it, and the text. */
function computeTicks(scale: ColourScale): [share: number, text: string][] {
  const [low, high] = scale.range;
  if (scale.kind === "linear") return [0, 0.25, 0.5, 0.75, 1].map((share) => [share, formatWeight(share * 2 ** high)]);
  const width = high - low;
  if (scale.colours === "ratio") return [0, 0.25, 0.5, 0.75, 1].map((share) => [share, formatLog2Ratio(2 ** (low + share * width), high % 2 === 0 ? 0 : 2)]);
  const step = [0.5, 1, 2, 5, 10].find((one) => width / one <= 5) ?? 10;
  const bits: number[] = [];
  for (let at = Math.ceil(low / step) * step; at <= high + 1e-9; at += step) bits.push(at);
  const format = (at: number): string => (scale.kind === "uniform" ? `${formatCount(2 ** at)}\u00d7` : formatPower(at));
  return bits.map((at) => [(at - low) / width, format(at)]);
}

export function paintLegend(surface: Surface, box: Box, theme: Theme, legend: LegendContent): void {
  const { context } = surface;
  const bar = { left: box.left, top: box.top + 16, width: Math.max(80, Math.min(280, box.width * 0.4)), height: BAR_HEIGHT };
  paintBar(surface, bar, theme, legend);
  const start = bar.left + bar.width + 24;
  const end = box.left + box.width;
  // A narrow legend needs three lines, the first beside what is written over the bar.
  const beside = box.width < 470 && bar.left + measureWidth(context, font, describeColour(legend)) + 8 < start;
  let [x, y] = [start, beside ? box.top + 8 : bar.top + BAR_HEIGHT / 2];
  /** A mark and its text, in this line or the next; the first version of the text that fits. */
  const addEntry = (mark: number, paintMark: (x: number, y: number) => void, ...words: readonly string[]): void => {
    const findFitting = (from: number): string | undefined => words.find((text) => from + mark + measureWidth(context, font, text) <= end);
    if (x > start && findFitting(x) !== words[0]) [x, y] = [start, y + 16];
    const text = findFitting(x) ?? fitText(context, font, words.at(-1) ?? "", end - x - mark);
    paintMark(x, y);
    context.font = font;
    context.fillStyle = theme.muted;
    context.textAlign = "left";
    context.textBaseline = "middle";
    context.fillText(text, x + mark, y);
    x += mark + measureWidth(context, font, text) + 16;
  };
  if (legend.masked) {
    addEntry(24, (left, middle) => {
      paintHatch(surface, { left, top: middle - 6, width: 18, height: 12 }, theme);
      context.strokeStyle = theme.line;
      context.lineWidth = 1;
      context.strokeRect(left + 0.5, middle - 5.5, 17, 11);
    }, "masked");
  }
  if (legend.scale.colours === "ratio") {
    addEntry(0, () => undefined, "blue: B attends more, orange: A attends more", "blue: B, orange: A");
    addEntry(24, (left, middle) => {
      context.fillStyle = `rgb(${TOO_SMALL_GREY.join(" ")})`;
      context.fillRect(left, middle - 6, 18, 12);
    }, `both below 2${toSuperscript(String(MIN_BITS))}`);
  }
  if (legend.dots) {
    addEntry(11, (left, middle) => {
      context.fillStyle = "#000000";
      context.fillRect(left, middle - 2.5, 5, 5);
      context.fillStyle = "#ffffff";
      context.fillRect(left + 1, middle - 1.5, 3, 3);
    }, "a link of 0.1 or more inside, hidden by the mean", "a hidden link, 0.1 or more", "hidden link");
  }
  for (const remark of legend.remarks) addEntry(0, () => undefined, ...remark);
}

const barImages = new WeakMap<ColourTable, OffscreenCanvas>();

/** The 256 entries as a picture one pixel high. */
function getBarImage(table: ColourTable): OffscreenCanvas {
  let bar = barImages.get(table);
  if (!bar) {
    const image = new ImageData(256, 1);
    for (let entry = 0; entry < 256; entry++) {
      image.data.set(table.subarray(entry * 3, entry * 3 + 3), entry * 4);
      image.data[entry * 4 + 3] = 255;
    }
    bar = new OffscreenCanvas(256, 1);
    bar.getContext("2d")?.putImageData(image, 0, 0);
    barImages.set(table, bar);
  }
  return bar;
}

function paintBar(surface: Surface, bar: Box, theme: Theme, legend: LegendContent): void {
  const { context } = surface;
  context.imageSmoothingEnabled = false;
  context.drawImage(getBarImage(getTable(legend.scale.colours)), bar.left, bar.top, bar.width, bar.height);
  context.textBaseline = "alphabetic";
  context.font = tickFont;
  context.textAlign = "left";
  const taken: number[] = [];
  // The ends first: they are the range. What would touch another is left out.
  for (const [share, text] of computeTicks(legend.scale).sort(([one], [other]) => Math.abs(other - 0.5) - Math.abs(one - 0.5))) {
    const x = bar.left + share * bar.width;
    const width = measureWidth(context, tickFont, text);
    const left = Math.max(bar.left, Math.min(bar.left + bar.width - width, x - width / 2));
    if (taken.some((other) => Math.abs(other - left - width / 2) < width + 6)) continue;
    taken.push(left + width / 2);
    context.fillStyle = theme.line;
    context.fillRect(Math.round(x) - (share === 1 ? 1 : 0), bar.top + bar.height, 1, 3);
    context.fillStyle = theme.muted;
    context.fillText(text, left, bar.top + bar.height + 13);
  }
  context.font = font;
  context.fillStyle = theme.ink;
  context.fillText(describeColour(legend), bar.left, bar.top - 4);
  if (legend.marked !== null) paintMark(surface, bar, theme, getEntry(legend.marked.weight, legend.scale, legend.marked.keys) / 255);
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
