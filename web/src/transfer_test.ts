import assert from 'node:assert/strict';
import { test } from 'node:test';
import { type Conversation, newConversation, newMessage, withMessage } from './conversation';
import { exportText, importText } from './transfer';

function sample(): Conversation {
  const question = newMessage(null, 'user', 'Why?');
  const answer = { ...newMessage(question.id, 'assistant', 'So.'), end: 'stop', reasoning: 'Hm', numbers: { new_tokens: 3 } };
  const c = newConversation({ system: 'Be brief', sampling: { temperature: 0.5 }, stop: ['x'], reasoning: 'low', extra: '{"top_k": 3}' });
  return withMessage(withMessage(c, question), answer);
}

test('what is exported is imported, under a new id', () => {
  const one = sample();
  const [again] = importText(exportText([one]));
  assert.notEqual(again!.id, one.id);
  assert.deepEqual({ ...again, id: one.id }, one);
});

test('an answer that was being written is imported as interrupted', () => {
  const c = withMessage(sample(), newMessage(null, 'assistant', 'Half'));
  assert.equal(importText(exportText([c]))[0]!.messages.at(-1)!.end, 'interrupted');
});

// What a file must not hold, by what is put into a good one.
const kWrong: [string, (file: any) => unknown, RegExp][] = [
  ['no JSON', () => '{', /JSON/],
  ['another format', (f) => ({ ...f, format: 'x' }), /not an export/],
  ['a later version', (f) => ({ ...f, version: 2 }), /version 2/],
  ['no list', (f) => ({ ...f, conversations: {} }), /conversations must be a list/],
  ['no messages', (f) => (delete f.conversations[0].messages, f), /conversations\[0\]\.messages must be a list/],
  ['a role', (f) => ((f.conversations[0].messages[1].role = 'system'), f), /messages\[1\]\.role/],
  ['a circle', (f) => ((f.conversations[0].messages[0].parent = f.conversations[0].messages[1].id), f), /messages\[0\]\.parent names no message before it/],
  ['an id twice', (f) => (f.conversations[0].messages.push(f.conversations[0].messages[1]), f), /messages\[2\]\.id occurs twice/],
  ['text that is none', (f) => ((f.conversations[0].messages[0].text = { toString: 'x' }), f), /messages\[0\]\.text must be text/],
  ['a number that is none', (f) => ((f.conversations[0].created = null), f), /created must be a number/],
  ['a temperature', (f) => ((f.conversations[0].settings.sampling.temperature = 3), f), /temperature must be from 0 to 2/],
  ['fields that the page sets', (f) => ((f.conversations[0].settings.extra = '{"stream": false}'), f), /extra must not contain "stream"/],
];

for (const [name, change, why] of kWrong)
  test(`refused: ${name}`, () => {
    const file = change(JSON.parse(exportText([sample()])));
    assert.throws(() => importText(typeof file === 'string' ? file : JSON.stringify(file)), why);
  });

test('what is not known is left out', () => {
  const file = JSON.parse(exportText([sample()]));
  file.conversations[0].messages[0].__proto__x = 1;
  file.conversations[0].settings.sampling.unknown = 1;
  const [c] = importText(JSON.stringify(file));
  assert.ok(!('__proto__x' in c!.messages[0]!));
  assert.deepEqual(c!.settings.sampling, { temperature: 0.5 });
});
