// Tests the web page in a real browser against the real server:
//   node tests/page/page.js FOLDER PROGRAM PACKAGE BROWSER [SCREENSHOTS]
// FOLDER has playwright-core in node_modules, BROWSER is Chromium. PACKAGE is the small story model; what it could not say by
// itself is forced by a grammar. With SCREENSHOTS, a folder, pictures of the page are written there instead.
'use strict';
const assert = require('assert/strict');
const fs = require('fs');
const path = require('path');
const { createRequire } = require('module');
const { startServer } = require('./server');
const { hostile } = require('./hostile');

const [folder, program, modelPackage, browserPath, screenshots] = process.argv.slice(2);
const { chromium } = createRequire(path.resolve(folder, 'index.js'))('playwright-core');
const policy = fs.readFileSync(path.join(__dirname, '../../web/content_security_policy.txt'), 'utf8').trim();
const key = 'key-for-the-page-5f0a';
const question = 'Tell me a story about a dragon and a cake.';
const endless = { ignore_eos: true, max_tokens: 3000 };

// A page in a browser profile of its own. Whatever goes wrong in it fails the test that uses it.
class Visit {
  static async begin(browser, url, options = {}) {
    const context = await browser.newContext({ viewport: { width: 1280, height: 800 }, ...options });
    await context.grantPermissions(['clipboard-read', 'clipboard-write']);
    const visit = new Visit(await context.newPage(), url);
    await visit.page.goto(url);
    await visit.page.locator('#app .composer').waitFor();
    return visit;
  }

  constructor(page, url) {
    this.page = page;
    this.url = url;
    this.expected = []; // what the console may say
    this.faults = [];
    page.setDefaultTimeout(15_000);
    page.on('pageerror', (error) => this.faults.push(`error: ${error.message}`));
    page.on('console', (message) => {
      if (['error', 'warning'].includes(message.type()) && !this.expected.some((e) => e.test(message.text())))
        this.faults.push(`${message.type()}: ${message.text()}`);
    });
    page.on('dialog', (dialog) => {
      this.faults.push(`a dialog: ${dialog.message()}`);
      void dialog.dismiss();
    });
    page.on('request', (request) => {
      if (!request.url().startsWith(url) && !request.url().startsWith('blob:')) this.faults.push(`a request to ${request.url()}`);
    });
  }

  async end() {
    await this.page.context().close();
    assert.deepEqual(this.faults, []);
  }

  get box() {
    return this.page.getByLabel('Message', { exact: true });
  }
  get stop() {
    return this.page.getByRole('button', { name: 'Stop', exact: true });
  }
  get answers() {
    return this.page.locator('.message.assistant');
  }
  get users() {
    return this.page.locator('.message.user');
  }
  button(name) {
    return this.page.getByRole('button', { name, exact: true });
  }

  // Fields of the requests from now on.
  async request(fields) {
    await this.page.keyboard.press('Alt+s');
    await this.page.getByLabel('More fields of the request, as JSON').fill(JSON.stringify(fields));
    await this.page.keyboard.press('Escape');
    await this.page.locator('dialog').waitFor({ state: 'detached' });
  }
  async send(text) {
    await this.box.fill(text);
    await this.box.press('Enter');
  }
  async finished() {
    await this.button('Send').waitFor();
    await this.page.locator('.message:last-child .numbers').waitFor();
  }
  async ask(text, fields) {
    await this.request(fields);
    await this.send(text);
    await this.finished();
    return this.textOf(this.answers.last());
  }
  textOf(message) {
    return message.locator('.markdown').last().innerText();
  }
  async import(conversations, name = 'import.json') {
    const file = typeof conversations === 'string' ? conversations : exportOf(conversations);
    await this.page.getByLabel('File to import').setInputFiles({ name, mimeType: 'application/json', buffer: Buffer.from(file) });
  }
}

function exportOf(conversations) {
  return JSON.stringify({ format: 'moeflux conversations', version: 1, conversations });
}

// A conversation of texts, the user's first.
function conversationOf(title, texts, more = {}) {
  const messages = texts.map((text, i) => ({
    id: `m${i}`, parent: i > 0 ? `m${i - 1}` : null, role: i % 2 ? 'assistant' : 'user', created: 1, ...(i % 2 ? { end: 'stop' } : {}),
    ...(typeof text === 'string' ? { text } : text),
  }));
  const settings = { system: '', sampling: {}, stop: [], reasoning: '', extra: '', ...more };
  return { title, created: 1, changed: 1, settings, messages, leaf: messages.at(-1)?.id ?? null };
}

const engineOf = async (url) => (await fetch(`${url}/v1/engine`)).json();
async function until(what, check) {
  for (const end = Date.now() + 15_000; ; await new Promise((resolve) => setTimeout(resolve, 50))) {
    if (await check()) return;
    assert.ok(Date.now() < end, `waited in vain: ${what}`);
  }
}
const grammarOf = (text) => `root ::= ${JSON.stringify(text)}`;

const tests = {
  async 'an answer is that of the API'({ browser, url }) {
    const visit = await Visit.begin(browser, url);
    const fields = { seed: 7, max_tokens: 60 };
    const shown = await visit.ask(question, fields);
    const body = { ...fields, messages: [{ role: 'user', content: question }] };
    const reply = await (
      await fetch(`${url}/v1/chat/completions`, { method: 'POST', headers: { 'content-type': 'application/json' }, body: JSON.stringify(body) })
    ).json();
    const words = (text) => text.split(/\s+/).filter(Boolean).join(' ');
    assert.equal(words(shown), words(reply.choices[0].message.content));
    assert.match(await visit.answers.last().locator('.numbers').innerText(), /^60 tokens, [\d.]+ tok\/s; prompt \d+/);
    assert.match(await visit.answers.last().innerText(), /limit of tokens/);
    await visit.end();
  },

  async 'it streams, stops, and the server stops too'({ browser, url }) {
    const visit = await Visit.begin(browser, url);
    await visit.request(endless);
    await visit.send(question);
    const length = async () => (await visit.textOf(visit.answers.last())).length;
    await until('the first text', async () => (await length()) > 0);
    await visit.stop.waitFor();
    const first = await length();
    await until('more text', async () => (await length()) > first);
    assert.equal((await engineOf(url)).texts.running, 1);
    await visit.page.keyboard.press('Escape');
    await visit.page.getByText('Stopped.').waitFor();
    const stopped = await length();
    await until('the server to stop', async () => (await engineOf(url)).texts.running === 0);
    assert.equal(await length(), stopped);
    assert.equal(await visit.page.getByRole('status').filter({ hasText: 'Stopped' }).count(), 1);
    await visit.end();
  },

  async 'retry and edit keep what was there'({ browser, url }) {
    const visit = await Visit.begin(browser, url);
    const first = await visit.ask(question, { max_tokens: 24, seed: 1 });
    await visit.request({ max_tokens: 24, seed: 2 });
    await visit.button('Try another answer').click();
    await visit.finished();
    const second = await visit.textOf(visit.answers.last());
    assert.notEqual(second, first);
    await visit.page.getByText('2 / 2').waitFor();
    await visit.answers.last().getByRole('button', { name: 'Version before' }).click();
    await until('the first answer', async () => (await visit.textOf(visit.answers.last())) === first);

    await visit.users.first().getByRole('button', { name: 'Edit message' }).click();
    await visit.page.getByLabel('Edit message', { exact: true }).fill('Tell me about a bee.');
    await visit.page.keyboard.press('Enter');
    await visit.finished();
    assert.equal(await visit.users.count(), 1);
    assert.equal(await visit.users.first().locator('.plain').innerText(), 'Tell me about a bee.');
    assert.notEqual(await visit.textOf(visit.answers.last()), first);
    await visit.users.first().getByRole('button', { name: 'Version before' }).click();
    await until('the first question', async () => (await visit.users.first().locator('.plain').innerText()) === question);

    await visit.answers.last().getByRole('button', { name: 'Edit message' }).click();
    await visit.page.getByLabel('Edit message', { exact: true }).fill('I had rather *not*.');
    await visit.button('Save').click();
    await visit.page.getByText('3 / 3').waitFor();
    assert.equal(await visit.answers.last().locator('em').innerText(), 'not');
    assert.match(await visit.ask('Why?', { max_tokens: 8 }), /\S/);
    assert.equal(await visit.users.count(), 2);
    await visit.end();
  },

  async 'a reload keeps conversations, and the one that is shown'({ browser, url }) {
    const visit = await Visit.begin(browser, url);
    const answer = await visit.ask(question, { max_tokens: 24 });
    await visit.page.keyboard.press('Alt+n');
    await visit.page.locator('.welcome').waitFor();
    await visit.ask('Another one', { max_tokens: 8 });
    await visit.page.locator('.sidebar .title').nth(1).click();
    await visit.page.waitForTimeout(700); // it saves every half second
    await visit.page.reload();
    await until('the answer', async () => (await visit.answers.count()) === 1 && (await visit.textOf(visit.answers.last())) === answer);
    assert.equal(await visit.page.locator('.sidebar .title').count(), 2);

    await visit.page.getByRole('button', { name: 'Rename Another one' }).click({ force: true });
    await visit.page.getByLabel('Title', { exact: true }).fill('Renamed');
    await visit.page.keyboard.press('Enter');
    await visit.page.getByRole('button', { name: 'Renamed', exact: true }).waitFor();
    await visit.page.getByLabel('Search conversations').fill('renam');
    assert.equal(await visit.page.locator('.sidebar .title').count(), 1);
    await visit.page.getByRole('button', { name: 'Delete Renamed' }).click({ force: true });
    assert.equal(await visit.page.locator('.sidebar .title').count(), 0);
    await visit.button('Undo').click();
    assert.equal(await visit.page.locator('.sidebar .title').count(), 1);
    await visit.page.getByRole('button', { name: 'Delete Renamed' }).click({ force: true });
    await visit.page.waitForTimeout(700);
    await visit.page.reload();
    await until('one conversation', async () => (await visit.page.locator('.sidebar .title').count()) === 1);
    await visit.end();
  },

  async 'an answer that a reload cuts off says so'({ browser, url }) {
    const visit = await Visit.begin(browser, url);
    await visit.request(endless);
    await visit.send(question);
    await until('some text', async () => (await visit.textOf(visit.answers.last())).length > 100);
    await visit.page.waitForTimeout(700);
    await visit.page.reload();
    await visit.page.getByText('The page was closed while this was being written.').waitFor();
    assert.ok((await visit.textOf(visit.answers.last())).length > 50);
    await visit.end();
  },

  async 'export and import'({ browser, url }) {
    const visit = await Visit.begin(browser, url);
    await visit.page.evaluate((value) => localStorage.setItem('moeflux.key', value), key);
    await visit.page.reload();
    const answer = await visit.ask(question, { max_tokens: 16 });
    const [download] = await Promise.all([visit.page.waitForEvent('download'), visit.button('Export all').click()]);
    const file = fs.readFileSync(await download.path(), 'utf8');
    assert.ok(!file.includes(key));
    await visit.import(file);
    await visit.page.getByText('One conversation imported').waitFor();
    assert.equal(await visit.page.locator('.sidebar .title').count(), 2);
    assert.equal(await visit.textOf(visit.answers.last()), answer);

    for (const [wrong, why] of [
      ['{"a"', /Nothing was imported/],
      ['{"format": "other"}', /not an export of conversations/],
      [exportOf([{ ...conversationOf('x', ['a']), leaf: 'm7' }]), /conversations\[0\]\.leaf names no message/],
      [exportOf([conversationOf('x', [{ text: 5 }])]), /conversations\[0\]\.messages\[0\]\.text must be text/],
      [exportOf([conversationOf('x', [{ text: 'a', parent: 'm1' }, 'b'])]), /messages\[0\]\.parent names no message before it/],
      [exportOf([conversationOf('x', ['a'], { sampling: { temperature: 9 } })]), /temperature must be from 0 to 2/],
    ]) {
      await visit.import(wrong);
      await visit.page.locator('.notice.error').filter({ hasText: why }).waitFor();
    }
    assert.equal(await visit.page.locator('.sidebar .title').count(), 2);
    await visit.end();
  },

  async 'hostile text is inert'({ browser, url }) {
    const visit = await Visit.begin(browser, url);
    await visit.page.evaluate(() => {
      window.hits = [];
      document.addEventListener('securitypolicyviolation', (e) => window.hits.push(`${e.violatedDirective} ${e.blockedURI}`));
    });
    const texts = hostile.flatMap((text) => [text, { text, reasoning: text, error: text, end: 'failed', calls: [{ name: text, arguments: text }] }]);
    await visit.import([conversationOf(hostile.join(' '), texts, { system: hostile.join('\n') })]);
    await visit.page.getByText('One conversation imported').waitFor();
    assert.equal(await visit.answers.count(), hostile.length);
    await visit.page.locator('details').evaluateAll((all) => all.forEach((d) => (d.open = true)));
    await visit.page.locator('.thread a').evaluateAll((all) => all.forEach((a) => a.dispatchEvent(new MouseEvent('mouseover', { bubbles: true }))));
    await visit.page.waitForTimeout(300); // what would run, would have
    assert.deepEqual(await visit.page.evaluate(() => window.hits), []);
    const found = await visit.page.locator('#app').evaluate((root) => ({
      tags: [...root.querySelectorAll('.markdown *')].map((e) => e.localName).filter((t) => /^(script|img|svg|math|iframe|object|embed|form|input|style|link|base|meta|video|audio|details|dialog|template)$/.test(t)),
      handlers: [...root.querySelectorAll('*')].flatMap((e) => [...e.attributes].map((a) => a.name)).filter((n) => n.startsWith('on') || n === 'srcdoc'),
      styles: [...root.querySelectorAll('.markdown [style], .markdown [id], .markdown [name]')].length,
      links: [...root.querySelectorAll('.thread a')].map((a) => a.getAttribute('href')).filter((h) => h === null || !/^(https?:|mailto:)/.test(h)).filter((h) => h !== null),
      rel: [...root.querySelectorAll('.thread a[href]')].filter((a) => a.target !== '_blank' || !a.rel.includes('noopener')).length,
      classes: [...root.querySelectorAll('.markdown .block [class]')].flatMap((e) => [...e.classList]).filter((c) => !/^(hljs|language|function_|class_|code-bar|code-frame|table-frame)/.test(c)),
      shown: root.querySelector('.thread').innerText.includes('<script>window.hits.push'),
    }));
    assert.deepEqual(found, { tags: [], handlers: [], styles: 0, links: [], rel: 0, classes: [], shown: true });
    assert.equal(visit.page.context().pages().length, 1);
    await visit.end();
  },

  async 'what a model is made to say is inert too'({ browser, url }) {
    const visit = await Visit.begin(browser, url);
    await visit.page.evaluate(() => (window.hits = []));
    for (const text of hostile.slice(0, 4)) {
      const shown = await visit.ask('Attack!', { grammar: grammarOf(text) });
      assert.ok(shown.length > 0);
      assert.equal(await visit.answers.last().locator('script, img, svg, iframe, [onerror], [onload], a[href^="javascript"]').count(), 0);
    }
    assert.deepEqual(await visit.page.evaluate(() => window.hits), []);
    await visit.end();
  },

  async 'the policy is sent, and would hold alone'({ browser, url }) {
    for (const file of ['/', '/app.js', '/style.css', '/icon.svg', '/licenses.txt']) {
      const response = await fetch(url + file);
      assert.equal(response.status, 200, file);
      assert.equal(response.headers.get('content-security-policy'), policy);
      assert.equal(response.headers.get('x-content-type-options'), 'nosniff');
      const again = await fetch(url + file, { headers: { 'if-none-match': response.headers.get('etag') } });
      assert.equal(again.status, 304, file);
    }
    const visit = await Visit.begin(browser, url);
    visit.expected.push(/Content Security Policy|violates|TrustedHTML/i);
    const outcome = await visit.page.evaluate(async () => {
      window.hits = [];
      const violations = [];
      document.addEventListener('securitypolicyviolation', (e) => violations.push(e.effectiveDirective));
      let threw = false;
      try {
        document.body.insertAdjacentHTML('beforeend', '<img src=x onerror="window.hits.push(1)">');
      } catch {
        threw = true; // only DOMPurify may make HTML
      }
      const button = document.createElement('button');
      button.setAttribute('onclick', 'window.hits.push(2)');
      document.body.append(button);
      button.click();
      const image = new Image();
      image.src = 'http://127.0.0.2:9/x.png';
      await fetch('http://127.0.0.2:9/').catch(() => {});
      await new Promise((resolve) => setTimeout(resolve, 200));
      return { threw, hits: window.hits, violations: [...new Set(violations)].sort() };
    });
    assert.equal(outcome.threw, true);
    assert.deepEqual(outcome.hits, []);
    for (const directive of ['connect-src', 'img-src', 'require-trusted-types-for', 'script-src-attr']) assert.ok(outcome.violations.includes(directive), `${directive}: ${outcome.violations}`);
    await visit.end();
  },

  async 'markdown, code with a button, reasoning folded'({ browser, url }) {
    const visit = await Visit.begin(browser, url);
    const markdown = '**Bold**\n\n```python\ndef f(x):\n    return x\n```\n\n| a | b |\n|---|---|\n| 1 | 2 |\n';
    await visit.ask('Write code.', { grammar: grammarOf(`<think>\nIt wants code.\n</think>\n\n${markdown}`) });
    const answer = visit.answers.last();
    assert.equal(await answer.locator('strong').innerText(), 'Bold');
    assert.equal(await answer.locator('td').count(), 2);
    assert.equal(await answer.locator('.hljs-keyword').first().innerText(), 'def');
    await answer.getByRole('button', { name: 'Copy code' }).click();
    assert.equal(await visit.page.evaluate(() => navigator.clipboard.readText()), 'def f(x):\n    return x\n');
    await answer.getByRole('button', { name: 'Copy message' }).click();
    assert.equal((await visit.page.evaluate(() => navigator.clipboard.readText())).trim(), markdown.trim());
    const thoughts = answer.getByText('It wants code.');
    assert.equal(await thoughts.isVisible(), false);
    await answer.getByText('Thought about it').click();
    assert.equal(await thoughts.isVisible(), true);
    await visit.end();
  },

  async 'the engine moves'({ browser, url }) {
    const visit = await Visit.begin(browser, url);
    await visit.page.keyboard.press('Alt+e');
    const map = visit.page.locator('.heat-map canvas');
    await map.waitFor();
    assert.match(await map.getAttribute('aria-label'), /^8 layers of up to 32 experts; \d+ of 256 are in memory$/);
    const pixels = () => map.evaluate((c) => c.toDataURL());
    const before = await pixels();
    await visit.ask(question, { max_tokens: 400, ignore_eos: true });
    await until('the heat map to change', async () => (await pixels()) !== before);
    await until('a line of tokens/s', async () => (await visit.page.getByRole('img', { name: /^New tokens\/s/ }).getAttribute('aria-label')).includes('scale up to'));
    const engine = await engineOf(url);
    assert.ok(engine.store.hits > 0 && engine.store.misses > 0, 'the store has few slots, so it must miss');
    const tiers = await visit.page.locator('.tier .name').allInnerTexts();
    assert.deepEqual(tiers, ['RAM', 'SSD']);
    await map.hover();
    await visit.page.getByText(/^Layer \d, expert \d+: /).waitFor();
    await visit.button('Close the engine view').click();
    assert.equal(await map.count(), 0);
    await visit.end();
  },

  async 'keys'({ browser, url }) {
    const visit = await Visit.begin(browser, url);
    const { page } = visit;
    const focused = () => page.evaluate(() => document.activeElement.getAttribute('aria-label'));
    assert.equal(await focused(), 'Message');
    await visit.request({ max_tokens: 8 });
    await page.keyboard.type('one');
    await page.keyboard.press('Shift+Enter');
    await page.keyboard.type('two');
    await page.keyboard.press('Enter');
    await visit.finished();
    assert.equal(await visit.users.first().locator('.plain').innerText(), 'one\ntwo');
    await page.keyboard.press('ArrowUp');
    assert.equal(await focused(), 'Edit message');
    await page.keyboard.press('Escape');
    await page.keyboard.press('Alt+k');
    await page.getByRole('dialog', { name: 'Keys' }).waitFor();
    await page.keyboard.press('Escape');
    await page.getByRole('dialog').waitFor({ state: 'detached' });
    await page.locator('.thread').focus();
    await page.keyboard.press('/');
    assert.equal(await focused(), 'Message');
    await page.keyboard.press('Alt+r');
    await page.getByText('2 / 2').waitFor();
    await visit.finished();
    await page.keyboard.press('Alt+n');
    await page.locator('.welcome').waitFor();
    await page.keyboard.press('Alt+ArrowDown');
    await visit.users.first().waitFor();
    // Everything that can be pressed or filled in has a name.
    await page.keyboard.press('Alt+s');
    const nameless = await page.evaluate(() =>
      [...document.querySelectorAll('button, input, select, textarea, a[href]')]
        .filter((e) => !(e.getAttribute('aria-label') || e.textContent.trim() || e.labels?.length))
        .map((e) => e.outerHTML),
    );
    assert.deepEqual(nameless, []);
    await visit.end();
  },

  async 'a phone: nothing is wider than the screen'({ browser, url }) {
    const visit = await Visit.begin(browser, url, { viewport: { width: 360, height: 640 }, hasTouch: true, isMobile: true });
    const wide = `${'word'.repeat(100)}\n\n\`\`\`\n${'x = 1; '.repeat(60)}\n\`\`\`\n\n|${' column |'.repeat(30)}\n|${'---|'.repeat(30)}\n|${' 12345 |'.repeat(30)}\n`;
    await visit.import([conversationOf('w'.repeat(200), [wide, wide])]);
    const overflow = () =>
      visit.page.evaluate(() => [...document.querySelectorAll('html, .thread, .sidebar, .engine, .dialog-body')].filter((e) => e.scrollWidth > e.clientWidth).map((e) => e.className || e.localName));
    await visit.answers.last().waitFor();
    assert.deepEqual(await overflow(), []);
    assert.equal(await visit.page.evaluate(() => innerWidth), 360);
    await visit.button('Conversations').click();
    await visit.page.locator('.sidebar .title').first().waitFor();
    assert.deepEqual(await overflow(), []);
    await visit.page.locator('.sidebar .title').first().click();
    await visit.button('Engine (Alt+E)').click();
    await visit.page.locator('.heat-map canvas').waitFor();
    assert.deepEqual(await overflow(), []);
    await visit.button('Close the engine view').click();
    await visit.button('Settings (Alt+S)').click();
    assert.deepEqual(await overflow(), []);
    await visit.button('Close').click();
    await visit.ask('Go on', { max_tokens: 8 });
    await visit.end();
  },

  async 'light and dark'({ browser, url }) {
    const ground = (visit) => visit.page.evaluate(() => getComputedStyle(document.body).backgroundColor);
    const light = await Visit.begin(browser, url, { colorScheme: 'light' });
    const dark = await Visit.begin(browser, url, { colorScheme: 'dark' });
    assert.notEqual(await ground(light), await ground(dark));
    await light.page.keyboard.press('Alt+s');
    await light.page.getByLabel('Colours').selectOption('dark');
    assert.equal(await ground(light), await ground(dark));
    await light.page.reload();
    await light.page.locator('.composer').waitFor();
    assert.equal(await ground(light), await ground(dark));
    await light.end();
    await dark.end();
  },

  async 'errors of the server are shown, and the next message works'({ browser, url }) {
    const visit = await Visit.begin(browser, url);
    visit.expected.push(/400/);
    await visit.send('word '.repeat(4000));
    await visit.page.locator('.failure').waitFor();
    assert.match(await visit.page.locator('.failure').innerText(), /\d+ tokens/);
    await visit.page.keyboard.press('Alt+n');
    assert.match(await visit.ask(question, { max_tokens: 8 }), /\S/);
    await visit.page.keyboard.press('Alt+s');
    await visit.page.getByLabel('Temperature').fill('7');
    await visit.page.getByText('must be from 0 to 2').waitFor();
    await visit.page.getByLabel('More fields of the request, as JSON').fill('{"messages": []}');
    await visit.page.getByText('the page sets it').waitFor();
    await visit.end();
  },

  async 'a key is asked for, and kept in the browser only'({ browser }) {
    const guarded = startServer(program, modelPackage, [], { MOEFLUX_API_KEY: key });
    const url = await guarded.ready;
    const visit = await Visit.begin(browser, url);
    visit.expected.push(/401/);
    await visit.page.getByText('This server wants an API key.').waitFor();
    await visit.button('Enter it').click();
    await visit.page.getByLabel('API key').fill(key);
    await visit.page.getByLabel('API key').press('Tab');
    await visit.page.getByText('This server wants an API key.').waitFor({ state: 'detached' });
    await visit.page.keyboard.press('Escape');
    assert.match(await visit.ask(question, { max_tokens: 8 }), /\S/);
    await visit.page.reload();
    await visit.page.locator('.model').waitFor();
    await visit.end();
    await guarded.end();
    assert.ok(!guarded.log().includes(key));
  },

  async 'a server that goes away in the middle'({ browser }) {
    const other = startServer(program, modelPackage, []);
    const visit = await Visit.begin(browser, await other.ready);
    visit.expected.push(/ERR_/);
    await visit.request(endless);
    await visit.send(question);
    await until('some text', async () => (await visit.textOf(visit.answers.last())).length > 20);
    other.child.kill('SIGKILL');
    await visit.page.getByText('the connection broke off in the middle of the answer').waitFor();
    await visit.button('Try again').click();
    await visit.page.getByText('the server cannot be reached').first().waitFor();
    await visit.end();
  },
};

async function takeScreenshots(browser, url) {
  const shots = {
    'page-light': { viewport: { width: 1440, height: 900 }, colorScheme: 'light' },
    'page-dark': { viewport: { width: 1440, height: 900 }, colorScheme: 'dark' },
    'page-phone': { viewport: { width: 390, height: 844 }, colorScheme: 'dark', hasTouch: true, isMobile: true, deviceScaleFactor: 2 },
  };
  for (const [name, options] of Object.entries(shots)) {
    const visit = await Visit.begin(browser, url, options);
    if (!options.isMobile) await visit.page.keyboard.press('Alt+e');
    await visit.ask(question, { seed: 3 });
    await visit.ask('And then?', { seed: 4 });
    await visit.request(endless);
    await visit.send('Tell me about a frog who wanted to fly.');
    await visit.page.waitForTimeout(options.isMobile ? 500 : 4500);
    if (!options.isMobile) await visit.page.keyboard.press('Escape');
    await visit.page.screenshot({ path: path.join(screenshots, `${name}.png`) });
    await visit.page.keyboard.press('Escape');
    await visit.end();
  }
}

async function main() {
  const browser = await chromium.launch({ executablePath: browserPath });
  // Few slots, so that experts come and go.
  const server = startServer(program, modelPackage, ['--ram', '4MiB']);
  const failed = [];
  try {
    const url = await server.ready;
    if (screenshots) return await takeScreenshots(browser, url);
    for (const [name, test] of Object.entries(tests)) {
      const begun = Date.now();
      try {
        await test({ browser, url });
        console.log(`ok     ${name} (${((Date.now() - begun) / 1000).toFixed(1)} s)`);
      } catch (error) {
        failed.push(name);
        console.log(`FAILED ${name}\n${error.stack}`);
      }
    }
  } finally {
    await browser.close();
    await server.end();
  }
  console.log(failed.length ? `${failed.length} of ${Object.keys(tests).length} tests failed` : `${Object.keys(tests).length} tests passed`);
  process.exitCode = failed.length ? 1 : 0;
}

main().catch((error) => {
  console.error(error);
  process.exit(1);
});
