// Builds the page into the folder that is named: node build.mjs FOLDER
// The result depends on the sources and on the versions in package.json alone, so that it can be compared.
import { copyFileSync, mkdirSync, readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import * as esbuild from 'esbuild';

const folder = process.argv[2];
if (!folder) {
  console.error('usage: node build.mjs FOLDER');
  process.exit(2);
}
mkdirSync(folder, { recursive: true });

await esbuild.build({
  entryPoints: { app: 'src/main.tsx', style: 'src/style.css' },
  outdir: folder,
  entryNames: '[name]',
  bundle: true,
  minify: true,
  format: 'esm',
  target: ['es2022', 'chrome123', 'firefox120', 'safari17.5'],
  jsx: 'automatic',
  jsxImportSource: 'preact',
  legalComments: 'none', // licenses.txt has them whole
  charset: 'utf8',
  logLevel: 'warning',
});
for (const file of ['index.html', 'icon.svg']) copyFileSync(join('src', file), join(folder, file));

const packages = Object.keys(JSON.parse(readFileSync('package.json', 'utf8')).dependencies).sort();
const licences = packages.map((name) => {
  const { version } = JSON.parse(readFileSync(`node_modules/${name}/package.json`, 'utf8'));
  const text = readFileSync(`node_modules/${name}/LICENSE`, 'utf8').replaceAll('\r\n', '\n').trim();
  return `${name} ${version}\n${'='.repeat(72)}\n${text}\n`;
});
writeFileSync(join(folder, 'licenses.txt'), `This page contains:\n\n${licences.join('\n\n')}`);
