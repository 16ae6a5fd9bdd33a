// Builds the explorer into the Python package.
//   node build.mjs           writes ../src/sightline/explore/static
//   node build.mjs --check   compares instead of writing; exits 1 and names what differs
//   node build.mjs --test    bundles test/*.test.ts and runs them with node's own test runner
// The same sources give the same bytes: nothing of the machine, the clock or the folder gets into the output.
import { spawnSync } from "node:child_process";
import { mkdirSync, mkdtempSync, readFileSync, readdirSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";
import { gzipSync } from "node:zlib";
import { build } from "esbuild";

const here = dirname(fileURLToPath(import.meta.url));
const destination = join(here, "..", "src", "sightline", "explore", "static");
const shared = {
  absWorkingDir: here,
  bundle: true,
  charset: "utf8",
  logLevel: "warning",
  target: ["chrome109", "firefox115", "safari16.4"],
};

async function built() {
  const script = await build({
    ...shared,
    entryPoints: ["src/main.ts"],
    format: "esm",
    legalComments: "none",
    minify: true,
    outfile: "explorer.js",
    write: false,
  });
  const style = await build({
    ...shared,
    entryPoints: ["src/explorer.css"],
    minify: true,
    outfile: "explorer.css",
    write: false,
  });
  return new Map([
    ["index.html", readFileSync(join(here, "index.html"))],
    ["explorer.js", Buffer.from(script.outputFiles[0].contents)],
    ["explorer.css", Buffer.from(style.outputFiles[0].contents)],
  ]);
}

function write(files) {
  mkdirSync(destination, { recursive: true });
  for (const [name, bytes] of files) {
    writeFileSync(join(destination, name), bytes);
    console.log(`${name.padEnd(14)} ${bytes.length} bytes, ${gzipSync(bytes, { level: 9 }).length} gzipped`);
  }
}

function compare(files) {
  const different = [...files].filter(([name, bytes]) => {
    try {
      return !readFileSync(join(destination, name)).equals(bytes);
    } catch {
      return true;
    }
  });
  for (const [name] of different) {
    console.error(`src/sightline/explore/static/${name} is not what web/ builds: run "npm run build" in web/ and commit it`);
  }
  return different.length === 0;
}

async function test() {
  const folder = mkdtempSync(join(tmpdir(), "sightline-web-"));
  try {
    const sources = readdirSync(join(here, "test")).filter((name) => name.endsWith(".test.ts"));
    await build({
      ...shared,
      entryPoints: sources.map((name) => join("test", name)),
      format: "esm",
      outdir: folder,
      outExtension: { ".js": ".mjs" },
      platform: "node",
      target: "node20",
      sourcemap: "inline",
    });
    const bundles = sources.map((name) => join(folder, name.replace(/\.ts$/, ".mjs")));
    // Tests read the golden vectors by a path from web/.
    const run = spawnSync(process.execPath, ["--enable-source-maps", "--test", "--test-reporter", "dot", ...bundles], { cwd: here, stdio: "inherit" });
    return run.status === 0;
  } finally {
    rmSync(folder, { recursive: true, force: true });
  }
}

const mode = process.argv[2];
if (mode === "--test") {
  process.exitCode = (await test()) ? 0 : 1;
} else if (mode === "--check") {
  process.exitCode = compare(await built()) ? 0 : 1;
} else {
  write(await built());
}
