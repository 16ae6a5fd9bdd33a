import assert from "node:assert/strict";
import { readdirSync, readFileSync } from "node:fs";
import { dirname, join, normalize } from "node:path";
import { test } from "node:test";

/** What each module imports, types included; modules are named by their path in src, without the ending. */
function readImports(): Map<string, string[]> {
  const modules = new Map<string, string[]>();
  for (const path of readdirSync("src", { recursive: true })) {
    if (!/\.tsx?$/.test(path)) continue;
    const found = readFileSync(join("src", path), "utf8").matchAll(/(?:from|import)\s*\(?"(\.[^"]+)"/g);
    modules.set(path.replace(/\.tsx?$/, ""), [...found].map(([, target = ""]) => normalize(join(dirname(path), target))));
  }
  return modules;
}

/** A circle of imports as a path that ends where it began; null where there is none. */
function findCircle(modules: ReadonlyMap<string, readonly string[]>): string[] | null {
  const done = new Set<string>();
  const visit = (module: string, path: readonly string[]): string[] | null => {
    if (path.includes(module)) return [...path.slice(path.indexOf(module)), module];
    if (done.has(module)) return null;
    for (const target of modules.get(module) ?? []) {
      const circle = visit(target, [...path, module]);
      if (circle) return circle;
    }
    done.add(module);
    return null;
  };
  for (const module of modules.keys()) {
    const circle = visit(module, []);
    if (circle) return circle;
  }
  return null;
}

const modules = readImports();

test("no module imports itself through others, not even for a type", () => {
  assert.ok(modules.size > 100 && [...modules.values()].flat().every((target) => modules.has(target)));
  assert.deepEqual(findCircle(new Map([["a", ["b"]], ["b", ["c"]], ["c", ["b"]]])), ["b", "c", "b"]);
  assert.equal(findCircle(modules), null);
});

test("a folder imports only folders below it, from geometry up to map", () => {
  const folders = ["geometry", "server", "tiles", "paint", "map"];
  const wrong = [...modules].flatMap(([module, targets]) => {
    const level = folders.indexOf(dirname(module));
    const isAllowed = (target: string): boolean =>
      dirname(target) === "." || (folders.includes(dirname(target)) && folders.indexOf(dirname(target)) <= level);
    return level < 0 ? [] : targets.filter((target) => !isAllowed(target)).map((target) => `${module} -> ${target}`);
  });
  assert.deepEqual(wrong, []);
});
