/** The help dialog: how to read the map, and the keyboard table with its switch. */

import { createDialog } from "./dialog";
import { button, element } from "./dom";
import type { Host } from "../host";
import { formatKey, KEYS, type KeyRow } from "../keys";

export interface HelpDialog {
  readonly element: HTMLDialogElement;
  open(): void;
}

const READING_GUIDE: readonly (readonly [string, string])[] = [
  [
    "Rows and columns",
    "Each row is a query, each column is a key: the row's token attends to the column's token. Every row sums to 1.",
  ],
  [
    "Colours",
    "Brighter is more attention. Near, colours show the logarithm of the weight; far out, how many times the weight is that of uniform attention. The legend says which.",
  ],
  [
    "Far out",
    "One pixel then stands for many pairs: its colour is their mean, and a dot marks a single strong link among them.",
  ],
  ["Hatched", "These pairs are masked. That is not the same as a weight of zero, which is the darkest colour."],
];

function describeMouse({ wheelZooms }: Host): readonly [string, string] {
  const wheel = wheelZooms === "always" ? "turn the wheel" : "turn the wheel with Ctrl held";
  return [
    "Mouse",
    `Drag to move, ${wheel} to zoom, click a cell to pin it, click a label to pin its row or column.`,
  ];
}

/** `tour` begins the tour; null where there is none. */
export function createHelpDialog(
  host: Host,
  enabled: boolean,
  onChange: (enabled: boolean) => void,
  tour: (() => void) | null,
): HelpDialog {
  const box = element("input", { type: "checkbox", id: "keys-enabled" });
  box.checked = enabled;
  box.addEventListener("change", () => onChange(box.checked));
  const dialog = createDialog(
    "help",
    "How to read and move",
    "help",
    element(
      "dl",
      { class: "reading" },
      ...[...READING_GUIDE, describeMouse(host)].flatMap(([term, text]) => [element("dt", {}, term), element("dd", {}, text)]),
    ),
    tour &&
      button("Take the tour", () => {
        dialog.close();
        tour();
      }),
    element("h3", {}, "Keyboard"),
    element("label", { class: "switch" }, box, " enable single-key shortcuts (? always opens this list)"),
    element("div", { class: "key-groups" }, ...groupKeys().map(([name, rows]) => createKeyTable(name, rows))),
  );
  return { element: dialog, open: () => dialog.open || dialog.showModal() };
}

function groupKeys(): [string, KeyRow[]][] {
  const found = new Map<string, KeyRow[]>();
  for (const row of KEYS) found.set(row.group, [...(found.get(row.group) ?? []), row]);
  return [...found];
}

function createKeyTable(name: string, rows: readonly KeyRow[]): HTMLElement {
  return element(
    "table",
    {},
    element("caption", {}, name),
    element(
      "tbody",
      {},
      ...rows.map((row) =>
        element(
          "tr",
          {},
          element(
            "th",
            { scope: "row" },
            ...row.keys
              // Shift and a letter is the capital letter: the arrow says it already.
              .filter((key) => row.ctrl || !(row.shift && key.length === 1))
              .flatMap((key, index) => [index > 0 && " ", element("kbd", {}, formatKey(key, row))]),
          ),
          element("td", {}, row.description),
        ),
      ),
    ),
  );
}
