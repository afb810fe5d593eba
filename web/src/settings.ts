// What a conversation asks of the model besides its messages. Pure.

export interface SamplingField {
  name: string; // as the API calls it
  label: string;
  hint: string;
  min: number;
  max: number;
  step: number; // 1: whole numbers only
}

export const kSamplingFields: readonly SamplingField[] = [
  { name: 'temperature', label: 'Temperature', hint: '0 always takes the likeliest token', min: 0, max: 2, step: 0.05 },
  { name: 'top_p', label: 'Top p', hint: 'keep the likeliest tokens up to this share', min: 0, max: 1, step: 0.01 },
  { name: 'top_k', label: 'Top k', hint: 'keep this many tokens; 0: all', min: 0, max: 100000, step: 1 },
  { name: 'min_p', label: 'Min p', hint: 'drop tokens below this share of the likeliest', min: 0, max: 1, step: 0.01 },
  { name: 'repetition_penalty', label: 'Repetition penalty', hint: '1: none', min: 0.01, max: 100, step: 0.01 },
  { name: 'presence_penalty', label: 'Presence penalty', hint: '0: none', min: -2, max: 2, step: 0.1 },
  { name: 'frequency_penalty', label: 'Frequency penalty', hint: '0: none', min: -2, max: 2, step: 0.1 },
  { name: 'max_tokens', label: 'Most new tokens', hint: 'empty: to the end of the context', min: 1, max: 4294967295, step: 1 },
  { name: 'seed', label: 'Seed', hint: 'the same seed gives the same answer', min: 0, max: 9007199254740991, step: 1 },
];

export const kReasoning = ['', 'none', 'low', 'medium', 'high'] as const;
export type Reasoning = (typeof kReasoning)[number];

export interface Settings {
  system: string;
  sampling: Record<string, number>; // by name; what is not there is left to the server
  stop: string[];
  reasoning: Reasoning; // '': as the model does by itself
  extra: string; // a JSON object of further fields of the request, as it was typed; may be empty
}

export function emptySettings(): Settings {
  return { system: '', sampling: {}, stop: [], reasoning: '', extra: '' };
}

// Why a number does not fit a field; null where it does.
export function samplingFault(field: SamplingField, value: number): string | null {
  if (!Number.isFinite(value)) return 'is not a number';
  if (value < field.min || value > field.max) return `must be from ${field.min} to ${field.max}`;
  if (field.step === 1 && !Number.isInteger(value)) return 'must be a whole number';
  return null;
}

// The fields that `extra` holds. Throws an Error that says what is wrong with it.
export function parseExtra(extra: string): Record<string, unknown> {
  if (extra.trim() === '') return {};
  const value: unknown = JSON.parse(extra);
  if (typeof value !== 'object' || value === null || Array.isArray(value)) throw new Error('must be a JSON object');
  for (const name of ['messages', 'stream', 'n'])
    if (name in value) throw new Error(`must not contain "${name}": the page sets it`);
  return value as Record<string, unknown>;
}

// The fields of a request that the settings stand for.
export function requestFields(settings: Settings): Record<string, unknown> {
  return {
    ...settings.sampling,
    ...(settings.stop.length > 0 ? { stop: settings.stop } : {}),
    ...(settings.reasoning ? { reasoning_effort: settings.reasoning } : {}),
    ...parseExtra(settings.extra),
  };
}
