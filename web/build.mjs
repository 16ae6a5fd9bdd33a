// Builds the explorer into the Python package, and the page of steps into the docs too.
//   node build.mjs           writes ../src/attnscope/explorer/static and ../docs/_static/one_weight.html
//   node build.mjs --check   compares instead of writing; exits 1 and names what differs
//   node build.mjs --test    bundles test/*.test.ts and runs them with node's own test runner
//   node build.mjs --sizes   says what each part takes of what the served page loads, at first and later
// The same sources give the same bytes: nothing of the machine, the clock or the folder gets into the output.
import { spawnSync } from "node:child_process";
import { createHash } from "node:crypto";
import { mkdirSync, mkdtempSync, readFileSync, readdirSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { basename, dirname, join, relative } from "node:path";
import { fileURLToPath } from "node:url";
import { gzipSync } from "node:zlib";
import { build } from "esbuild";
import { minify } from "terser";

const here = dirname(fileURLToPath(import.meta.url));
const destination = join(here, "..", "src", "attnscope", "explorer", "static");
const DOCS_PAGE = "docs/_static/one_weight.html";
const shared = {
  absWorkingDir: here,
  bundle: true,
  charset: "utf8",
  logLevel: "warning",
  target: ["chrome109", "firefox115", "safari16.4"],
};

async function built() {
  const files = await Promise.all([
    ...(await splitPage()).minified,
    script("explorer.js", "src/main.ts"),
    script("loader.js", "src/loader.ts"),
    script("site.js", "src/site/main.ts"),
    script("site_worker.js", "src/site/worker.ts"),
    script("survey.js", "src/survey/main.ts"),
    script("watch.js", "src/watch/main.tsx"),
    script("steps.js", "src/steps/main.tsx"),
    bundled("explorer.css", "src/explorer.css"),
    bundled("survey.css", "src/survey.css"),
    bundled("watch.css", "src/watch.css"),
    bundled("steps.css", "src/steps.css"),
  ]);
  const pages = ["index.html", "survey.html", "watch.html", "steps.html"].map((name) => [name, readFileSync(join(here, name))]);
  const all = new Map([...pages, ...files]);
  return all.set(DOCS_PAGE, singleFile(all));
}

/** The page of steps as one file for the docs, with links to the labs; its policy allows only its own script and style. */
function singleFile(files) {
  const script = files.get("steps.js").toString().replace(/<(?=!--|\/?script)/gi, "\\x3c");
  const style = files.get("steps.css").toString();
  const policy = `default-src 'none'; script-src '${hash(script)}'; style-src '${hash(style)}'; img-src data:; base-uri 'none'; form-action 'none'`;
  const parts = {
    '<link rel="stylesheet" href="steps.css">': `<style>${style}</style>`,
    '<meta charset="utf-8">': `<meta charset="utf-8">\n    <meta http-equiv="Content-Security-Policy" content="${policy}">`,
    '\n    <script type="module" src="steps.js"></script>': "",
    'data-attnscope="steps"': 'data-attnscope="steps" data-labs="../labs/"',
    "  </body>": `    <script type="module">${script}</script>\n  </body>`,
  };
  return Buffer.from(Object.entries(parts).reduce((page, [from, to]) => page.replace(from, () => to), files.get("steps.html").toString()));
}

function hash(text) {
  return `sha256-${createHash("sha256").update(text).digest("base64")}`;
}

async function script(name, from) {
  return shrink(await bundled(name, from, { format: "esm", legalComments: "none" }));
}

/** The served page loads page.js and page_shared.js at first, and page_later.js when it is idle or needs it. */
async function splitPage() {
  const { outputFiles, metafile } = await build({
    ...{ ...shared, format: "esm", legalComments: "none", minify: true, write: false, metafile: true },
    ...{ entryPoints: { page: "src/page.ts", page_later: "src/later.ts" }, splitting: true, chunkNames: "page_shared", outdir: "." },
  });
  const minified = outputFiles.map(({ path, contents }) => {
    const name = basename(path);
    return shrink([name, contents, Object.keys(metafile.outputs[name].inputs)]);
  });
  return { metafile, minified };
}

/** Terser after esbuild: a twentieth less to load. */
async function shrink([name, bytes, inputs]) {
  const { code } = await minify(Buffer.from(bytes).toString(), { module: true, ecma: 2022, compress: { passes: 3, keep_fargs: false, lhs_constants: false } });
  return [name, Buffer.from(inputs.some((path) => path.includes("node_modules/preact/")) ? preactLicense() + code : code)];
}

/** The licence of Preact asks for its text in every copy. */
function preactLicense() {
  return `/*! Includes Preact.\n${readFileSync(join(here, "node_modules", "preact", "LICENSE"), "utf8").trim()}\n*/\n`;
}

async function bundled(name, from, options = {}) {
  const { outputFiles, metafile } = await build({ ...shared, ...options, entryPoints: [from], minify: true, outfile: name, write: false, metafile: true });
  return [name, Buffer.from(outputFiles[0].contents), Object.keys(metafile.inputs)];
}

/** Where a file goes: into the package, but for the page of the docs. */
function place(name) {
  return name === DOCS_PAGE ? join(here, "..", name) : join(destination, name);
}

function write(files) {
  mkdirSync(destination, { recursive: true });
  for (const [name, bytes] of files) {
    writeFileSync(place(name), bytes);
    console.log(`${name.padEnd(14)} ${bytes.length} bytes, ${gzipSync(bytes, { level: 9 }).length} gzipped`);
  }
}

function compare(files) {
  const different = [...files].filter(([name, bytes]) => {
    try {
      return !readFileSync(place(name)).equals(bytes);
    } catch {
      return true;
    }
  });
  for (const [name] of different) {
    console.error(`${relative(join(here, ".."), place(name))} is not what web/ builds: run "npm run build" in web/ and commit it`);
  }
  return different.length === 0;
}

/** A part's share of the compressed scripts of the served page, by its share of the minified ones: at first, and later. */
async function sizes() {
  const { metafile, minified } = await splitPage();
  const files = new Map(await Promise.all(minified));
  const parts = new Map();
  for (const [name, { inputs, bytes }] of Object.entries(metafile.outputs)) {
    const rate = gzipSync(files.get(name), { level: 9 }).length / bytes / 1024;
    for (const [path, { bytesInOutput }] of Object.entries(inputs)) {
      const part = /node_modules\/(\w+)/.exec(path)?.[1] ?? path.split("/").slice(1, -1)[0] ?? "root";
      const shares = parts.get(part) ?? parts.set(part, [0, 0]).get(part);
      shares[name === "page_later.js" ? 1 : 0] += bytesInOutput * rate;
    }
  }
  console.log("KiB        first  later");
  for (const [part, shares] of [...parts].sort(([, one], [, other]) => other[0] - one[0]))
    console.log(part.padEnd(10), ...shares.map((share) => share.toFixed(1).padStart(5)));
}

async function test() {
  const folder = mkdtempSync(join(tmpdir(), "attnscope-web-"));
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
} else if (mode === "--sizes") {
  await sizes();
} else if (mode === "--check") {
  process.exitCode = compare(await built()) ? 0 : 1;
} else {
  write(await built());
}
