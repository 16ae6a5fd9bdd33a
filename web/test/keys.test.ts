import assert from "node:assert/strict";
import { test } from "node:test";

import { findAction, formatKey, isHandledByTarget, KEYS, type KeyPress } from "../src/keys";

const press = (key: string, held: Partial<KeyPress> = {}): KeyPress => ({
  key,
  shiftKey: false,
  ctrlKey: false,
  metaKey: false,
  altKey: false,
  ...held,
});

test("every row of the help list does what it says, by each of its keys", () => {
  for (const row of KEYS) {
    for (const key of row.keys) {
      const shiftKey = row.shift ?? /^[A-Z?<>{}+]$/.test(key);
      assert.equal(findAction(press(key, { shiftKey, ctrlKey: row.ctrl ?? false })), row.action, `${key} ${row.description}`);
    }
  }
});

test("no key does two things", () => {
  const seen = new Set<string>();
  for (const row of KEYS) {
    for (const key of row.keys) {
      const name = formatKey(key, row);
      assert.ok(!seen.has(name), name);
      seen.add(name);
    }
  }
});

test("Shift and an arrow is one screen, an arrow alone is a step", () => {
  assert.equal(findAction(press("ArrowLeft")), "panLeft");
  assert.equal(findAction(press("ArrowLeft", { shiftKey: true })), "screenLeft");
});

test("other keys with Ctrl, Alt or Meta are left to the browser", () => {
  const withCtrl = KEYS.filter(({ ctrl }) => ctrl).flatMap(({ keys }) => keys);
  for (const { keys } of KEYS) {
    for (const key of keys) {
      for (const held of ["ctrlKey", "metaKey", "altKey"] as const)
        if (held === "altKey" || !withCtrl.includes(key)) assert.equal(findAction(press(key, { [held]: true })), null);
    }
  }
  assert.equal(findAction(press("z")), null);
  assert.equal(findAction(press("z", { metaKey: true, shiftKey: true })), "redo", "on a Mac, the letter stays small");
  assert.equal(findAction(press("Z", { ctrlKey: true, shiftKey: true })), "redo");
  assert.equal(findAction(press("f", { isComposing: true })), null);
});

test("keys in a field have no action, and Enter on a button presses it", () => {
  for (const tagName of ["INPUT", "TEXTAREA", "SELECT"]) assert.ok(isHandledByTarget({ tagName }, "f"));
  assert.ok(isHandledByTarget({ tagName: "DIV", isContentEditable: true }, "f"));
  assert.ok(isHandledByTarget({ tagName: "BUTTON" }, "Enter"));
  assert.ok(!isHandledByTarget({ tagName: "BUTTON" }, "f"));
  assert.ok(!isHandledByTarget({ tagName: "DIV" }, "Enter"));
});
