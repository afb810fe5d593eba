// Runs the tests of the parts that need no browser: src/*_test.ts.
import { mkdtempSync, readdirSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { spawnSync } from 'node:child_process';
import * as esbuild from 'esbuild';

const folder = mkdtempSync(join(tmpdir(), 'moeflux-web-'));
try {
  await esbuild.build({
    entryPoints: readdirSync('src').filter((name) => name.endsWith('_test.ts')).map((name) => join('src', name)),
    outdir: folder,
    outExtension: { '.js': '.mjs' },
    bundle: true,
    platform: 'node',
    format: 'esm',
    // Browsers have it, but not yet node 18.
    banner: { js: "import { webcrypto } from 'node:crypto'; globalThis.crypto ??= webcrypto;" },
    logLevel: 'warning',
  });
  const files = readdirSync(folder).map((name) => join(folder, name));
  process.exitCode = spawnSync(process.execPath, ['--test', '--test-reporter=dot', ...files], { stdio: 'inherit' }).status ?? 1;
} finally {
  rmSync(folder, { recursive: true });
}
