import assert from 'node:assert/strict';
import { test } from 'node:test';
import { EventStreamParser } from './sse';

const kStream = ': ping\n\ndata: {"a":"ä€😀"}\n\nevent: x\ndata:one\ndata: two\r\n\r\n\n\ndata: [DONE]\n\ndata: not complete\n';
const kEvents = ['{"a":"ä€😀"}', 'one\ntwo', '[DONE]'];

test('events come whole, wherever the bytes are cut', () => {
  const bytes = new TextEncoder().encode(kStream);
  for (const size of [1, 2, 3, 5, 7, bytes.length]) {
    const parser = new EventStreamParser();
    const events: string[] = [];
    for (let at = 0; at < bytes.length; at += size) events.push(...parser.add(bytes.subarray(at, at + size)));
    assert.deepEqual(events, kEvents, `in pieces of ${size}`);
  }
});
