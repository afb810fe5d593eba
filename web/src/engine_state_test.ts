import assert from 'node:assert/strict';
import { test } from 'node:test';
import { engineState, sampleBetween } from './engine_state';

const answer = (uptime_s: number, more: object = {}) => ({
  model: 'm', backend: 'cpu', uptime_s, parallel: 4, texts: { running: 1, waiting: 2 }, tokens: { prompt: 10, reused: 5, new: 20 },
  memory: { ram_slot_bytes: 600, vram_slot_bytes: 0, expert_bytes: 1000 }, store: { hits: 30, misses: 10, bytes_read: 500, stall_s: 1 },
  layers: [{ layer: 0, held: '0212', used: [0, 1000, 20, 3] }, { layer: 3, held: '22', used: [1, 2] }], ...more,
});

test('an answer of the server is taken apart', () => {
  const state = engineState(answer(1));
  assert.deepEqual(state.layers[0], { layer: 0, held: [0, 2, 1, 2], used: [0, 1, 0.02, 0.003] });
  assert.deepEqual(state.tiers.map((t) => [t.name, t.capacity]), [['RAM', 600], ['SSD', 1000]]);
  assert.equal(state.tiers[0]!.detail, '4 of 6 experts');
  assert.equal(state.waiting, 2);
});

test('rates are differences over the server’s own time', () => {
  const before = engineState(answer(10));
  const now = engineState(answer(12, { tokens: { prompt: 10, reused: 5, new: 60 }, store: { hits: 60, misses: 20, bytes_read: 2500, stall_s: 1.5 } }));
  assert.deepEqual(sampleBetween(before, now), { new_per_s: 20, prompt_per_s: 0, hit_rate: 0.75, read_bytes_per_s: 1000, stall_share: 0.25 });
  assert.equal(sampleBetween(before, engineState(answer(11)))!.hit_rate, null);
  assert.equal(sampleBetween(now, before), null); // started anew
});

test('an answer with nothing in it is no error', () => {
  assert.equal(engineState({}).layers.length, 0);
});
