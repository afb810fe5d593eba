// Numbers for people.
import type { AnswerNumbers } from '../conversation';

const kUnits = ['B', 'kB', 'MB', 'GB', 'TB'];

export function bytesText(bytes: number): string {
  let value = bytes;
  let unit = 0;
  while (value >= 999.5 && unit + 1 < kUnits.length) {
    value /= 1000;
    ++unit;
  }
  return `${rounded(value)} ${kUnits[unit]}`;
}

// Three digits at most after which nothing is lost that an eye would use.
export function rounded(value: number): string {
  if (value === 0) return '0';
  const digits = value >= 99.95 ? 0 : value >= 9.995 ? 1 : 2;
  return value.toFixed(digits);
}

export function durationText(seconds: number): string {
  const s = Math.floor(seconds);
  if (s < 60) return `${s} s`;
  if (s < 3600) return `${Math.floor(s / 60)} min`;
  if (s < 86400) return `${Math.floor(s / 3600)} h ${Math.floor((s % 3600) / 60)} min`;
  return `${Math.floor(s / 86400)} d ${Math.floor((s % 86400) / 3600)} h`;
}

// "120 tokens, 31.5 tok/s; prompt 40, 32 from the cache"
export function numbersText(n: AnswerNumbers): string {
  const parts: string[] = [];
  if (n.new_tokens !== undefined) parts.push(n.new_tokens === 1 ? '1 token' : `${n.new_tokens} tokens`);
  if (n.new_tokens !== undefined && n.new_tokens > 1 && n.decode_ms) parts.push(`${rounded((1000 * n.new_tokens) / n.decode_ms)} tok/s`);
  let text = parts.join(', ');
  if (n.prompt_tokens !== undefined) text += `; prompt ${n.prompt_tokens}`;
  if (n.cached_tokens) text += `, ${n.cached_tokens} from the cache`;
  return text;
}
