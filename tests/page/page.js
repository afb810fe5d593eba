// Tests the web page in a real browser against the real server:
//   node tests/page/page.js FOLDER PROGRAM PACKAGE BROWSER [--screenshots FOLDER | WORD...]
// FOLDER has playwright-core in node_modules, BROWSER is Chromium. PACKAGE is the small story model; what it could not say by
// itself is forced by a grammar. With words, only tests with one of them in their name run; with --screenshots, none do, and
// pictures of the page are written instead.
'use strict';
const assert = require('assert/strict');
const fs = require('fs');
const http = require('http');
const path = require('path');
const { createRequire } = require('module');
const { endServers, startServer } = require('./server');
const { hostile } = require('./hostile');

const [folder, program, modelPackage, browserPath, ...rest] = process.argv.slice(2);
const screenshots = rest[0] === '--screenshots' ? rest[1] : null;
const { chromium } = createRequire(path.resolve(folder, 'index.js'))('playwright-core');
const policy = fs.readFileSync(path.join(__dirname, '../../web/content_security_policy.txt'), 'utf8').trim();
const key = 'key-for-the-page-5f0a';
const question = 'Tell me a story about a dragon and a cake.';
const endless = { ignore_eos: true, max_tokens: 3000 };
const slow = ['--ram', '4MiB']; // few slots: experts come and go, and there is time to look at an answer under way
const patience = 60_000; // ms: a machine that does much else is slow, and nothing here is about speed

// A page in a browser profile of its own. Whatever goes wrong in it fails the test that uses it, but for what is `expected`.
class Visit {
  static async begin(browser, url, options = {}, expected = []) {
    const context = await browser.newContext({ viewport: { width: 1280, height: 800 }, ...options });
    await context.grantPermissions(['clipboard-read', 'clipboard-write']);
    const visit = new Visit(await context.newPage(), url, expected);
    await visit.page.goto(url);
    await visit.page.locator('#app .composer').waitFor();
    return visit;
  }

  constructor(page, url, expected) {
    this.page = page;
    this.url = url;
    this.faults = [];
    const fault = (text) => expected.some((e) => e.test(text)) || this.faults.push(text);
    page.setDefaultTimeout(patience);
    page.on('pageerror', (error) => fault(`error: ${error.message}`));
    page.on('console', (message) => ['error', 'warning'].includes(message.type()) && fault(`${message.type()}: ${message.text()}`));
    page.on('dialog', (dialog) => {
      fault(`a dialog: ${dialog.message()}`);
      void dialog.dismiss();
    });
    page.on('request', (request) => {
      if (!request.url().startsWith(url) && !request.url().startsWith('blob:')) fault(`a request to ${request.url()}`);
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
  get editor() {
    return this.page.getByRole('textbox', { name: 'Edit message', exact: true });
  }
  button(name) {
    return this.page.getByRole('button', { name, exact: true });
  }

  // Fields of the requests from now on.
  async request(fields) {
    await this.page.keyboard.press('Alt+s');
    await this.page.getByLabel('More fields of the request, as JSON').fill(JSON.stringify(fields));
    await this.leaveDialog();
  }
  async leaveDialog() {
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
  // What in the page could act, or look like a part of it, though a text put it there.
  harm() {
    return this.page.locator('#app').evaluate((root) => {
      const found = [];
      const note = (what, elements) => found.push(...elements.map((e) => `${what}: ${e.outerHTML.slice(0, 200)}`));
      const all = (selector) => [...root.querySelectorAll(selector)];
      const harmless = /^(a|blockquote|br|button|code|del|div|em|h[1-6]|hr|kbd|li|mark|ol|p|pre|span|strong|sub|sup|table|tbody|td|th|thead|tr|u|ul)$/;
      const ours = /^(block|code-bar|code-frame|table-frame|hljs.*|language-.*|function_|class_)$/;
      note('element', all('.markdown *').filter((e) => !harmless.test(e.localName)));
      note('button', all('.markdown button').filter((e) => !e.matches('.code-bar > button')));
      note('handler', all('*').filter((e) => [...e.attributes].some((a) => /^on|^srcdoc$|^formaction$/.test(a.name))));
      note('attribute', all('.markdown [style], .markdown [id], .markdown [name], .markdown [src]'));
      note('link', all('.thread a[href]').filter((e) => !/^(https?:|mailto:)/.test(e.getAttribute('href')) || e.target !== '_blank' || !e.rel.includes('noopener')));
      note('class', all('.markdown [class]').filter((e) => [...e.classList].some((c) => !ours.test(c))));
      note('in plain text', all('.thread .plain *, .failure :not(button), summary *, .call *, h1 *, .title *'));
      return found;
    });
  }
  // The conversations that the browser has kept by now: what a reload would find.
  kept() {
    return this.page.evaluate(
      () =>
        new Promise((resolve, reject) => {
          const open = indexedDB.open('moeflux', 1);
          open.onerror = () => reject(open.error);
          open.onsuccess = () => {
            const all = open.result.transaction('conversations').objectStore('conversations').getAll();
            all.onerror = () => reject(all.error);
            all.onsuccess = () => resolve(all.result);
            open.result.close(); // once that is done
          };
        }),
    );
  }
  copied() {
    return this.page.evaluate(() => navigator.clipboard.readText());
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
  for (const end = Date.now() + patience; ; await new Promise((resolve) => setTimeout(resolve, 50))) {
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

    const caret = await visit.users.first().getByRole('button', { name: 'Edit message' }).evaluate(async (button) => {
      button.click();
      for (let i = 0; i < 3; ++i) await null; // the page draws itself anew; nothing that was typed could have come in between
      const { value, selectionStart } = document.activeElement;
      return [value, selectionStart];
    });
    assert.deepEqual(caret, [question, question.length]);
    await visit.editor.fill('Tell me about a bee.');
    await visit.page.keyboard.press('Enter');
    await visit.finished();
    assert.equal(await visit.users.count(), 1);
    assert.equal(await visit.users.first().locator('.plain').innerText(), 'Tell me about a bee.');
    assert.notEqual(await visit.textOf(visit.answers.last()), first);
    await visit.users.first().getByRole('button', { name: 'Version before' }).click();
    await until('the first question', async () => (await visit.users.first().locator('.plain').innerText()) === question);

    await visit.answers.last().getByRole('button', { name: 'Edit message' }).click();
    await visit.editor.fill('I had rather *not*.');
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
    const complete = (conversation) => conversation.messages.length === 2 && conversation.messages[1].end;
    await until('both to be kept', async () => (await visit.kept()).filter(complete).length === 2);
    await visit.page.reload();
    await until('the answer', async () => (await visit.answers.count()) === 1 && (await visit.textOf(visit.answers.last())) === answer);
    assert.equal(await visit.page.locator('.sidebar .title').count(), 2);

    const pressBeside = async (title, action) => {
      await visit.page.locator('.sidebar li').filter({ hasText: title }).hover(); // the buttons show then
      await visit.page.getByRole('button', { name: `${action} ${title}`, exact: true }).click();
    };
    await pressBeside('Another one', 'Rename');
    await visit.page.getByLabel('Title', { exact: true }).fill('Renamed');
    await visit.page.keyboard.press('Enter');
    await visit.page.getByRole('button', { name: 'Renamed', exact: true }).waitFor();
    await visit.page.getByLabel('Search conversations').fill('renam');
    assert.equal(await visit.page.locator('.sidebar .title').count(), 1);
    await pressBeside('Renamed', 'Delete');
    assert.equal(await visit.page.locator('.sidebar .title').count(), 0);
    await visit.button('Undo').click();
    assert.equal(await visit.page.locator('.sidebar .title').count(), 1);
    await pressBeside('Renamed', 'Delete');
    await until('one to be kept', async () => (await visit.kept()).length === 1);
    await visit.page.reload();
    await until('one conversation', async () => (await visit.page.locator('.sidebar .title').count()) === 1);
    await visit.end();
  },

  async 'an answer that a reload cuts off says so'({ browser, url }) {
    const visit = await Visit.begin(browser, url);
    await visit.request(endless);
    await visit.send(question);
    await until('some text to be kept', async () => (await visit.kept())[0]?.messages[1]?.text.length > 100);
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
    const shown = await visit.page.locator('.thread').innerText();
    assert.deepEqual(await visit.harm(), []);
    for (const text of ['<script>window.hits.push(1)</script>', '<iframe srcdoc=', '[image: x]', '<form action=', '<template>']) assert.ok(shown.includes(text), text);
    assert.equal(visit.page.context().pages().length, 1);
    await visit.end();
  },

  async 'what a model is made to say is inert too'({ browser, url }) {
    const visit = await Visit.begin(browser, url);
    await visit.page.evaluate(() => {
      window.hits = [];
      document.addEventListener('securitypolicyviolation', (e) => window.hits.push(`${e.violatedDirective} ${e.blockedURI}`));
    });
    // Each is streamed: tags are shown half written, too.
    for (const text of hostile.filter((t) => t.length < 400)) {
      await visit.page.keyboard.press('Alt+n');
      const shown = await visit.ask('Attack!', { grammar: grammarOf(text), max_tokens: 800 });
      assert.ok(shown.length > 0, text);
      assert.doesNotMatch(await visit.answers.last().innerText(), /limit of tokens/, text);
      assert.deepEqual(await visit.harm(), [], text);
    }
    assert.deepEqual(await visit.page.evaluate(() => window.hits), []);
    assert.equal(visit.page.context().pages().length, 1);
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
    const elsewhere = http.createServer((request, response) => {
      elsewhere.asked.push(request.url);
      response.end();
    });
    elsewhere.asked = [];
    elsewhere.unref(); // it does not keep a run alive that fails
    await new Promise((resolve) => elsewhere.listen(0, '127.0.0.2', resolve));
    const there = `127.0.0.2:${elsewhere.address().port}`;
    const listen = () => {
      window.hits = [];
      window.violations = new Set();
      document.addEventListener('securitypolicyviolation', (e) => window.violations.add(e.effectiveDirective));
    };
    const outcome = () => ({ hits: window.hits, violations: [...window.violations].sort() });

    // A script of the page that puts text where code or HTML belongs is stopped.
    const refused = [/Content Security Policy|violates|TrustedHTML|TrustedScript/i, /^a request to http:\/\/127\.0\.0\.2/]; // that does not leave
    const visit = await Visit.begin(browser, url, {}, refused);
    await visit.page.evaluate(listen);
    const threw = await visit.page.evaluate(() =>
      [
        () => document.body.insertAdjacentHTML('beforeend', '<img src=x onerror="window.hits.push(1)">'),
        () => { document.createElement('div').innerHTML = '<b>x</b>'; },
        () => { document.createElement('iframe').srcdoc = '<script>parent.hits.push(2)</script>'; },
        () => { document.createElement('script').src = 'app.js'; },
        () => { document.createElement('script').text = 'window.hits.push(3)'; },
        () => new DOMParser().parseFromString('<b>x</b>', 'text/html'),
        () => trustedTypes.createPolicy('other', { createHTML: (text) => text }),
        () => trustedTypes.createPolicy('dompurify', { createHTML: (text) => text }), // its own exists already
      ].map((act) => {
        try {
          act();
          return false;
        } catch {
          return true;
        }
      }),
    );
    assert.deepEqual(threw, threw.map(() => true));
    await visit.page.evaluate(async (address) => {
      new Image().src = `http://${address}/x.png`;
      await fetch(`http://${address}/`).catch(() => {});
    }, there);
    const stopped = ['connect-src', 'img-src', 'require-trusted-types-for', 'trusted-types'];
    await until('all of it to be reported', async () => (await visit.page.evaluate(outcome)).violations.length >= stopped.length);
    assert.deepEqual(await visit.page.evaluate(outcome), { hits: [], violations: stopped });
    await visit.end();

    // As if HTML had come past all else: a document with all of it, under the policy.
    const context = await browser.newContext();
    const page = await context.newPage();
    await page.addInitScript(listen);
    const raw = `<!doctype html><title>x</title><script>window.hits.push('script')</script>
      <button onclick="window.hits.push('button')">b</button><a href="javascript:window.hits.push('link')">l</a>
      <form action="http://127.0.0.2:9/"><button>s</button></form><iframe src="http://127.0.0.2:9/"></iframe>
      <img src="http://127.0.0.2:9/x.png"><script src="http://127.0.0.2:9/x.js"></script>
      ${hostile.map((text) => `<div>${text}</div>`).join('\n')}`;
    // What would hide the rest from the parser is left out.
    const body = raw.replaceAll(/<!--|<template>|<noscript>|<meta[^>]*>/g, '').replaceAll('127.0.0.2:9', there);
    const headers = { 'content-type': 'text/html', 'content-security-policy': policy };
    await page.route(`${url}/raw`, (route) => route.fulfill({ headers, body }));
    await page.goto(`${url}/raw`);
    await page.evaluate(() => document.querySelectorAll('button, a[href^="javascript" i], input[type=submit]').forEach((e) => e.click()));
    for (const directive of ['base-uri', 'form-action', 'frame-src', 'img-src', 'object-src', 'script-src-attr', 'script-src-elem', 'style-src-attr', 'style-src-elem'])
      await until(`a report of ${directive}`, async () => (await page.evaluate(outcome)).violations.includes(directive));
    await page.waitForTimeout(300); // what would run, would have
    assert.deepEqual((await page.evaluate(outcome)).hits, []);
    assert.deepEqual(elsewhere.asked, []);
    assert.equal(page.url(), `${url}/raw`);
    await context.close();
    elsewhere.close();
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
    // No line end: pasted into a shell, the last line waits.
    await until('the code in the clipboard', async () => (await visit.copied()) === 'def f(x):\n    return x');
    await answer.getByRole('button', { name: 'Copy message' }).click();
    await until('the message in the clipboard', async () => (await visit.copied()).trim() === markdown.trim());
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
    await visit.ask(question, { max_tokens: 100, ignore_eos: true });
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
    await until('the focus on: Message', async () => (await focused()) === 'Message');
    await visit.request({ max_tokens: 8 });
    await page.keyboard.type('one');
    await page.keyboard.press('Shift+Enter');
    await page.keyboard.type('two');
    await page.keyboard.press('Enter');
    await visit.finished();
    assert.equal(await visit.users.first().locator('.plain').innerText(), 'one\ntwo');
    await page.keyboard.press('ArrowUp');
    await until('the focus on: Edit message', async () => (await focused()) === 'Edit message');
    await page.keyboard.press('Escape');
    await page.keyboard.press('Alt+s');
    await page.getByRole('dialog', { name: 'Settings' }).waitFor();
    await page.keyboard.press('Alt+k');
    await page.getByRole('dialog', { name: 'Keys' }).waitFor();
    await page.getByRole('dialog', { name: 'Settings' }).waitFor({ state: 'detached' });
    assert.equal(await page.getByRole('dialog').count(), 1);
    await visit.leaveDialog();
    await page.locator('.thread').focus();
    await page.keyboard.press('/');
    await until('the focus on: Message', async () => (await focused()) === 'Message');
    await page.keyboard.press('Alt+r');
    await page.getByText('2 / 2').waitFor();
    await visit.finished();
    await page.keyboard.press('Alt+n');
    await page.locator('.welcome').waitFor();
    await page.keyboard.press('Alt+ArrowDown');
    await visit.users.first().waitFor();
    // Everything that can be pressed or filled in has a name.
    await page.keyboard.press('Alt+s');
    await page.getByRole('dialog', { name: 'Settings' }).waitFor();
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
    const visit = await Visit.begin(browser, url, {}, [/^error: .* 400 /]);
    await visit.send('word '.repeat(5000));
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
    const visit = await Visit.begin(browser, url, {}, [/^error: .* 401 /]);
    await visit.page.getByText('This server wants an API key.').waitFor();
    await visit.button('Enter it').click();
    await visit.page.getByLabel('API key').fill(key);
    await visit.page.getByLabel('API key').press('Tab');
    await visit.page.getByText('This server wants an API key.').waitFor({ state: 'detached' });
    await visit.leaveDialog();
    assert.match(await visit.ask(question, { max_tokens: 8 }), /\S/);
    await visit.page.reload();
    await visit.page.locator('.model').waitFor();
    await visit.end();
    await guarded.end();
    assert.ok(!guarded.log().includes(key));
  },

  async 'a server that goes away in the middle'({ browser }) {
    const other = startServer(program, modelPackage, slow);
    const visit = await Visit.begin(browser, await other.ready, {}, [/^error: .*ERR_/]);
    await visit.request(endless);
    await visit.send(question);
    await until('some text', async () => (await visit.textOf(visit.answers.last())).length > 20);
    other.child.kill('SIGKILL');
    const failure = visit.page.locator('.message .failure');
    await failure.filter({ hasText: 'the connection broke off in the middle of the answer' }).waitFor();
    await failure.getByRole('button', { name: 'Try again' }).click();
    await failure.filter({ hasText: 'the server cannot be reached' }).waitFor();
    await visit.end();
  },
};

async function takeScreenshots(browser, url) {
  const shots = {
    'page-light': { viewport: { width: 1200, height: 850 }, colorScheme: 'light' },
    'page-dark': { viewport: { width: 1200, height: 850 }, colorScheme: 'dark' },
    'page-phone': { viewport: { width: 390, height: 700 }, colorScheme: 'light', hasTouch: true, isMobile: true },
  };
  for (const [name, options] of Object.entries(shots)) {
    const visit = await Visit.begin(browser, url, options);
    if (!options.isMobile) await visit.page.keyboard.press('Alt+e');
    for (const [i, text] of ['Tell me a story about a bee.', 'Tell me a story about a kite.', question].entries()) {
      await visit.page.keyboard.press('Alt+n');
      await visit.ask(text, { seed: i + 3 });
      await visit.page.waitForTimeout(1500); // the engine is looked at once a second
    }
    await visit.ask('And then?', { seed: 4 });
    await visit.page.waitForTimeout(1500);
    await visit.page.screenshot({ path: path.join(screenshots, `${name}.png`) });
    await visit.end();
  }
}

async function main() {
  const browser = await chromium.launch({ executablePath: browserPath });
  const server = startServer(program, modelPackage, slow);
  const chosen = Object.entries(tests).filter(([name]) => rest.length === 0 || rest.some((word) => name.includes(word)));
  const failed = [];
  try {
    const url = await server.ready;
    if (screenshots) return await takeScreenshots(browser, url);
    for (const [name, test] of chosen) {
      const begun = Date.now();
      try {
        await test({ browser, url });
        console.log(`ok     ${name} (${((Date.now() - begun) / 1000).toFixed(1)} s)`);
      } catch (error) {
        failed.push(name);
        console.log(`FAILED ${name}\n${error.stack}`);
      }
      for (const context of browser.contexts()) await context.close(); // of a test that failed: its answer would go on
    }
  } finally {
    await browser.close();
    await endServers();
  }
  console.log(failed.length ? `${failed.length} of ${chosen.length} tests failed` : `${chosen.length} tests passed`);
  process.exitCode = failed.length ? 1 : 0;
}

main().catch((error) => {
  console.error(error);
  process.exit(1);
});
