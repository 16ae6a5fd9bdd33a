// Two heads in one picture: tiles made of the tiles of both, where both are there.
//
// In: two sources of tiles of one shape. Out: a source of the same kind. What is made is kept as long as the tiles it is made of.
import type { Channel } from "../server/protocol";
import type { TileAddress } from "../geometry/zoom_plan";
import { ratioCode } from "./ratio_codec";
import type { Held, HeldTile, TileSource, Wanted } from "./tile_store";

type Both<Value> = readonly [one: Value, other: Value];

/**
 * Split: A below the diagonal and on it, B turned over above it, where a column looks at a row; both are square, of one length.
 * Else A divided by B, as codes of `ratio.ts`.
 */
export class PairTiles implements TileSource {
  readonly #made = new WeakMap<HeldTile, { other: HeldTile; made: HeldTile }>();

  constructor(
    readonly sources: Both<TileSource>,
    readonly split: boolean,
  ) {}

  get(address: TileAddress, channel: Channel): Held | undefined {
    const [here, there] = this.#places(address);
    const [one, other] = [here && this.sources[0].get(here, channel), there && this.sources[1].get(there, channel)];
    if (!there) return one;
    if (!here) return typeof other === "object" ? this.#kept(other, other, (row, column) => codeAt(other, column, row)) : other;
    // There when both are; masked or failed when one is.
    for (const state of ["failed", "empty"] as const) if (one === state || other === state) return state;
    if (typeof one !== "object" || typeof other !== "object") return undefined;
    return this.#kept(one, other, (row, column) =>
      this.split
        ? column > row ? codeAt(other, column, row) : codeAt(one, row, column)
        : ratioCode(codeAt(one, row, column), codeAt(other, row, column)),
    );
  }

  want(list: readonly Wanted[], atOnce = false): void {
    for (const which of [0, 1] as const) {
      const own = list.flatMap((wanted) => {
        const place = this.#places(wanted)[which];
        return place ? [{ ...wanted, ...place }] : [];
      });
      this.sources[which].want(own, atOnce);
    }
  }

  lacks(address: TileAddress, channel: Channel): boolean {
    return this.#places(address).some((place, which) => place && this.sources[which]?.lacks(place, channel));
  }

  /** Where each of the two has what is drawn in a place; undefined where it is not drawn. */
  #places({ z, y, x }: TileAddress): Both<TileAddress | undefined> {
    if (!this.split) return [{ z, y, x }, { z, y, x }];
    return [y >= x ? { z, y, x } : undefined, y <= x ? { z, y: x, x: y } : undefined];
  }

  #kept(one: HeldTile, other: HeldTile, code: (row: number, column: number) => number): HeldTile {
    const before = this.#made.get(one);
    if (before?.other === other) return before.made;
    // Turned over, rows and columns change places; two tiles of one place have the same of both.
    const [rows, columns] = one === other ? [one.columns, one.rows] : [one.rows, one.columns];
    const codes = new Uint8Array(rows * columns);
    for (let row = 0, index = 0; row < rows; row++) for (let column = 0; column < columns; column++) codes[index++] = code(row, column);
    const made = {
      ...one,
      ...{ rows, columns, codes },
      holes: codes.includes(0),
      partial: one.partial || other.partial,
      log2min: Math.min(one.log2min, other.log2min),
      log2max: Math.max(one.log2max, other.log2max),
    };
    this.#made.set(one, { other, made });
    return made;
  }
}

function codeAt({ codes, columns }: HeldTile, row: number, column: number): number {
  return codes[row * columns + column] ?? 0;
}
