// Conversations as a file: what export writes and import reads. Everything in a file is checked, for it may come from
// anywhere: what does not fit is refused with the place, and what is not known is left out. API keys are never part of it.
import { type AnswerNumbers, type Conversation, type Message, newId, type ToolCall } from './conversation';
import { kReasoning, kSamplingFields, parseExtra, type Reasoning, samplingFault, type Settings } from './settings';

const kFormat = 'moeflux conversations';
const kVersion = 1;
const kMostConversations = 10_000;
const kMostMessages = 100_000;

export function exportText(conversations: Conversation[]): string {
  return JSON.stringify({ format: kFormat, version: kVersion, conversations }, null, 1) + '\n';
}

// The conversations of a file, under new ids. Throws an Error that names the place.
export function importText(text: string): Conversation[] {
  const file = object(JSON.parse(text), 'the file');
  if (file.format !== kFormat) throw new Error(`the file is not an export of conversations ("format" is not "${kFormat}")`);
  if (file.version !== kVersion) throw new Error(`the file has version ${String(file.version)}, this page reads ${kVersion}`);
  return list(file.conversations, 'conversations', kMostConversations).map((c, i) => conversation(c, `conversations[${i}]`));
}

// What the browser has kept, which an older page may have written. The same checks, the same ids.
export function readKept(value: unknown): Conversation {
  const kept = object(value, 'a conversation');
  return { ...conversation(kept, 'a conversation'), id: string(kept.id, 'id') };
}

type Members = Record<string, unknown>;

function object(value: unknown, where: string): Members {
  if (typeof value !== 'object' || value === null || Array.isArray(value)) throw new Error(`${where} must be an object`);
  return value as Members;
}
function list(value: unknown, where: string, most: number): unknown[] {
  if (!Array.isArray(value)) throw new Error(`${where} must be a list`);
  if (value.length > most) throw new Error(`${where} has ${value.length} entries, at most ${most} are read`);
  return value;
}
function string(value: unknown, where: string): string {
  if (typeof value !== 'string') throw new Error(`${where} must be text`);
  return value;
}
function number(value: unknown, where: string): number {
  if (typeof value !== 'number' || !Number.isFinite(value)) throw new Error(`${where} must be a number`);
  return value;
}

function conversation(value: unknown, where: string): Conversation {
  const c = object(value, where);
  const messages: Message[] = [];
  const seen = new Set<string>();
  list(c.messages, `${where}.messages`, kMostMessages).forEach((m, i) => {
    const at = `${where}.messages[${i}]`;
    const one = message(m, at);
    if (seen.has(one.id)) throw new Error(`${at}.id occurs twice`);
    if (one.parent !== null && !seen.has(one.parent)) throw new Error(`${at}.parent names no message before it`);
    seen.add(one.id);
    messages.push(one);
  });
  const leaf = c.leaf === null || c.leaf === undefined ? null : string(c.leaf, `${where}.leaf`);
  if (leaf !== null && !seen.has(leaf)) throw new Error(`${where}.leaf names no message`);
  return {
    id: newId(),
    title: string(c.title, `${where}.title`).slice(0, 200),
    created: number(c.created, `${where}.created`),
    changed: number(c.changed, `${where}.changed`),
    settings: readSettings(c.settings, `${where}.settings`),
    messages,
    leaf,
  };
}

function message(value: unknown, where: string): Message {
  const m = object(value, where);
  if (m.role !== 'user' && m.role !== 'assistant') throw new Error(`${where}.role must be "user" or "assistant"`);
  const out: Message = {
    id: string(m.id, `${where}.id`),
    parent: m.parent === null ? null : string(m.parent, `${where}.parent`),
    role: m.role,
    text: string(m.text, `${where}.text`),
    created: number(m.created, `${where}.created`),
  };
  if (m.reasoning !== undefined) out.reasoning = string(m.reasoning, `${where}.reasoning`);
  if (m.error !== undefined) out.error = string(m.error, `${where}.error`);
  if (m.calls !== undefined)
    out.calls = list(m.calls, `${where}.calls`, 1000).map((call, i): ToolCall => {
      const at = `${where}.calls[${i}]`;
      const o = object(call, at);
      return { name: string(o.name, `${at}.name`), arguments: string(o.arguments, `${at}.arguments`) };
    });
  if (m.numbers !== undefined) out.numbers = numbers(m.numbers, `${where}.numbers`);
  // An answer without an end was being written when the page went away.
  if (m.end !== undefined) out.end = string(m.end, `${where}.end`);
  else if (m.role === 'assistant') out.end = 'interrupted';
  return out;
}

function numbers(value: unknown, where: string): AnswerNumbers {
  const o = object(value, where);
  const out: AnswerNumbers = {};
  for (const name of ['prompt_tokens', 'cached_tokens', 'new_tokens', 'prompt_ms', 'decode_ms'] as const)
    if (o[name] !== undefined) out[name] = number(o[name], `${where}.${name}`);
  return out;
}

export function readSettings(value: unknown, where: string): Settings {
  const s = object(value, where);
  const given = object(s.sampling, `${where}.sampling`);
  const sampling: Record<string, number> = {};
  for (const field of kSamplingFields) {
    if (given[field.name] === undefined) continue;
    const at = `${where}.sampling.${field.name}`;
    const fault = samplingFault(field, number(given[field.name], at));
    if (fault) throw new Error(`${at} ${fault}`);
    sampling[field.name] = given[field.name] as number;
  }
  const reasoning = string(s.reasoning, `${where}.reasoning`) as Reasoning;
  if (!kReasoning.includes(reasoning)) throw new Error(`${where}.reasoning must be one of "${kReasoning.join('", "')}"`);
  const extra = string(s.extra, `${where}.extra`);
  try {
    parseExtra(extra);
  } catch (error) {
    throw new Error(`${where}.extra ${error instanceof Error ? error.message : String(error)}`);
  }
  return {
    system: string(s.system, `${where}.system`),
    sampling,
    stop: list(s.stop, `${where}.stop`, 100).map((stop, i) => string(stop, `${where}.stop[${i}]`)),
    reasoning,
    extra,
  };
}
