// What GET /v1/engine tells, and the rates that follow from two of its answers. Pure.

export type Held = 0 | 1 | 2; // not in memory, being loaded, in memory

export interface LayerState {
  layer: number;
  held: Held[]; // by expert
  used: number[]; // by expert: 0 .. 1, the share of the last steps that asked for it
}

export interface Tier {
  name: string;
  detail: string;
  bytes: number; // filled
  capacity: number;
}

export interface EngineState {
  model: string;
  backend: string;
  uptime_s: number;
  running: number;
  waiting: number;
  parallel: number;
  tokens: { prompt: number; reused: number; new: number }; // since the start, as all counters
  store: { hits: number; misses: number; bytes_read: number; stall_s: number };
  tiers: Tier[];
  layers: LayerState[];
}

// What happened between two answers. Null: nothing to measure it by.
export interface Sample {
  new_per_s: number;
  prompt_per_s: number;
  hit_rate: number | null;
  read_bytes_per_s: number;
  stall_share: number;
}

type Members = Record<string, any>; // JSON of the server
const count = (value: unknown) => (typeof value === 'number' && Number.isFinite(value) ? value : 0);

export function engineState(json: Members): EngineState {
  const layers: LayerState[] = (json.layers ?? []).map((l: Members) => ({
    layer: count(l.layer),
    held: Array.from(String(l.held ?? ''), (c) => (c === '2' ? 2 : c === '1' ? 1 : 0) as Held),
    used: (l.used ?? []).map((u: unknown) => Math.min(1, count(u) / 1000)),
  }));
  const texts: Members = json.texts ?? {};
  const tokens: Members = json.tokens ?? {};
  const store: Members = json.store ?? {};
  return {
    model: String(json.model ?? ''),
    backend: String(json.backend ?? ''),
    uptime_s: count(json.uptime_s),
    running: count(texts.running),
    waiting: count(texts.waiting),
    parallel: count(json.parallel),
    tokens: { prompt: count(tokens.prompt), reused: count(tokens.reused), new: count(tokens.new) },
    store: { hits: count(store.hits), misses: count(store.misses), bytes_read: count(store.bytes_read), stall_s: count(store.stall_s) },
    tiers: tiersOf(json.memory ?? {}, layers),
    layers,
  };
}

export function heldExperts(layers: LayerState[]): { held: number; all: number } {
  let held = 0;
  let all = 0;
  for (const layer of layers) {
    all += layer.held.length;
    for (const h of layer.held) if (h === 2) ++held;
  }
  return { held, all };
}

function tiersOf(memory: Members, layers: LayerState[]): Tier[] {
  const { held, all } = heldExperts(layers);
  const experts = count(memory.expert_bytes);
  const ram = count(memory.ram_slot_bytes);
  const vram = count(memory.vram_slot_bytes);
  const tiers: Tier[] = [];
  if (vram > 0) tiers.push({ name: 'VRAM', detail: 'slots for experts', bytes: vram, capacity: experts });
  const filled = all > 0 ? Math.min(ram, (experts * held) / all) : 0;
  tiers.push({ name: 'RAM', detail: `${held} of ${all} experts`, bytes: filled, capacity: ram });
  tiers.push({ name: 'SSD', detail: 'all experts', bytes: experts, capacity: experts });
  return tiers;
}

// Null where the server was started anew in between, or no time has passed.
export function sampleBetween(before: EngineState, now: EngineState): Sample | null {
  const seconds = now.uptime_s - before.uptime_s;
  if (!(seconds > 0)) return null;
  const hits = now.store.hits - before.store.hits;
  const asked = hits + now.store.misses - before.store.misses;
  return {
    new_per_s: (now.tokens.new - before.tokens.new) / seconds,
    prompt_per_s: (now.tokens.prompt - before.tokens.prompt) / seconds,
    hit_rate: asked > 0 ? hits / asked : null,
    read_bytes_per_s: (now.store.bytes_read - before.store.bytes_read) / seconds,
    stall_share: Math.min(1, (now.store.stall_s - before.store.stall_s) / seconds),
  };
}
