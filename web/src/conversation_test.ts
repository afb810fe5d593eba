import assert from 'node:assert/strict';
import { test } from 'node:test';
import { type Conversation, idsByParent, lastLeafBelow, type Message, newConversation, pathTo, titleFrom, withChange, withMessage } from './conversation';

function message(id: string, parent: string | null, role: Message['role'] = 'user'): Message {
  return { id, parent, role, text: id, created: 0 };
}

function tree(): Conversation {
  let c = newConversation();
  for (const m of [message('q', null), message('a1', 'q', 'assistant'), message('a2', 'q', 'assistant'), message('r', 'a1'), message('p', null)])
    c = withMessage(c, m);
  return c;
}

test('a path leads from the first message to a leaf', () => {
  const ids = (leaf: string | null) => pathTo(tree(), leaf).map((m) => m.id);
  assert.deepEqual(ids('r'), ['q', 'a1', 'r']);
  assert.deepEqual(ids('a2'), ['q', 'a2']);
  assert.deepEqual(ids('p'), ['p']);
  assert.deepEqual(ids(null), []);
});

test('versions are siblings, and the newest leaf below one is found', () => {
  assert.deepEqual(idsByParent(tree()).get('q'), ['a1', 'a2']);
  assert.deepEqual(idsByParent(tree()).get(null), ['q', 'p']);
  assert.equal(lastLeafBelow(tree(), 'q'), 'r');
  assert.equal(lastLeafBelow(tree(), 'a2'), 'a2');
});

test('a change makes a new message and leaves the others alone', () => {
  const before = tree();
  const after = withChange(before, 'a1', { text: 'new' });
  assert.equal(after.messages[1]!.text, 'new');
  assert.equal(before.messages[1]!.text, 'a1');
  assert.equal(after.messages[0], before.messages[0]);
});

test('titles are short and of one line', () => {
  assert.equal(titleFrom('  a\n b '), 'a b');
  assert.equal(titleFrom('x'.repeat(100)).length, 58);
});
