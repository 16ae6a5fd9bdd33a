import assert from "node:assert/strict";
import { test } from "node:test";

import type { Box } from "../src/geometry/box";
import { placeBeside } from "../src/tour/card_placement";
import { STEPS } from "../src/tour/steps";

const CARD = { width: 300, height: 200 };
const PAGE = { left: 0, top: 0, width: 1600, height: 1000 };

function apart(one: Box, other: Box): boolean {
  return (
    one.left + one.width <= other.left ||
    other.left + other.width <= one.left ||
    one.top + one.height <= other.top ||
    other.top + other.height <= one.top
  );
}

test("a card is placed beside its target, on the page and not over it", () => {
  let placed = 0;
  for (let left = 0; left <= 1500; left += 150)
    for (let top = 0; top <= 900; top += 150)
      for (const width of [40, 300, 1000])
        for (const height of [30, 300, 900]) {
          const target = { left, top, width, height };
          const card = placeBeside(target, CARD, PAGE);
          if (!card) continue;
          placed += 1;
          assert.ok(apart(card, target));
          assert.ok(card.left >= 0 && card.top >= 0);
          assert.ok(card.left + card.width <= PAGE.width && card.top + card.height <= PAGE.height);
        }
  assert.ok(placed > 300);
});

test("a card is placed right of its target, else left, else below, else nowhere", () => {
  assert.equal(placeBeside({ left: 100, top: 50, width: 200, height: 100 }, CARD, PAGE)?.left, 312);
  assert.equal(placeBeside({ left: 1300, top: 50, width: 280, height: 100 }, CARD, PAGE)?.left, 988);
  assert.equal(placeBeside({ left: 0, top: 0, width: 1600, height: 100 }, CARD, PAGE)?.top, 112);
  assert.equal(placeBeside({ left: 0, top: 0, width: 1600, height: 1000 }, CARD, PAGE), null);
  assert.equal(placeBeside({ left: 0, top: 0, width: 300, height: 300 }, CARD, { ...PAGE, width: 360, height: 440 }), null);
});

test("cards are placed in an explorer that is not at the top of the page", () => {
  const moved = { left: 500, top: 3000, width: 1600, height: 1000 };
  const there = placeBeside({ left: 600, top: 3050, width: 200, height: 100 }, CARD, moved);
  const here = placeBeside({ left: 100, top: 50, width: 200, height: 100 }, CARD, PAGE);
  assert.deepEqual([there?.left, there?.top], [(here?.left ?? 0) + 500, (here?.top ?? 0) + 3000]);
});

test("the tour takes about one minute", () => {
  const words = STEPS.flatMap(({ title, text: says }) => `${title} ${says}`.split(/\s+/));
  assert.ok(STEPS.length >= 6 && STEPS.length <= 7);
  assert.ok(words.length < 300, `${words.length} words take longer than that to read`);
});
