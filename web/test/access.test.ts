import assert from "node:assert/strict";
import { test } from "node:test";

import { openAccess, type AccessWindow } from "../src/server/access";

/** A page at an address, which counts how often it is loaded again. */
class Page implements AccessWindow {
  reloads = 0;
  readonly location;
  readonly history = {
    replaceState: (_data: unknown, _unused: string, address?: string | URL | null): void => {
      this.location.hash = /#.*/.exec(String(address))?.[0] ?? "";
    },
  };
  private readonly listeners: ((event: Event) => void)[] = [];

  constructor(hash: string) {
    this.location = { hash, pathname: "/survey", reload: () => void this.reloads++ };
  }
  addEventListener(_type: "popstate", listener: (event: Event) => void): void {
    this.listeners.push(listener);
  }
  /** Paste another fragment; whether the parts of the page were told. */
  paste(hash: string): boolean {
    let stopped = false;
    this.location.hash = hash;
    const event = { stopImmediatePropagation: () => (stopped = true) } as unknown as Event;
    for (const listener of this.listeners) listener(event);
    return !stopped;
  }
}

test("the token leaves the address at once, is exchanged once, and a failed exchange is tried again", async () => {
  const page = new Page("#token=0a1b#1/-/L0H0/map?pin=q1");
  const sent: string[] = [];
  const getToken = openAccess(page, async (token) => {
    sent.push(token);
    if (sent.length === 1) throw new TypeError("no answer");
    return "of the run";
  });
  assert.equal(page.location.hash, "#1/-/L0H0/map?pin=q1");
  await assert.rejects(getToken(), TypeError);
  assert.deepEqual(await Promise.all([getToken(), getToken()]), ["of the run", "of the run"]);
  assert.equal(await getToken(), "of the run");
  assert.deepEqual(sent, ["0a1b", "0a1b"]);
});

test("an address without a token is left alone, and the token of before is kept", async () => {
  const page = new Page("#1/-/L0H0/map");
  const getToken = openAccess(page, () => assert.fail("nothing to exchange"));
  assert.equal(page.location.hash, "#1/-/L0H0/map");
  assert.equal(await getToken(), "of the run");
});

test("a token pasted over the address of an open page loads it again, and other addresses do not", () => {
  const page = new Page("");
  openAccess(page, () => assert.fail("nothing to exchange"));
  assert.equal(page.paste("#1/-/L0H1/map"), true);
  assert.equal(page.reloads, 0);
  assert.equal(page.paste("#token=0a1b"), false);
  assert.equal(page.reloads, 1);
});
