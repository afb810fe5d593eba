// Requests to the server that the page came from. Addresses are relative, so that a proxy may serve it under any path.
import type { AnswerNumbers } from './conversation';
import { EventStreamParser } from './sse';

export class ApiFailure extends Error {
  constructor(
    message: string,
    readonly status: number, // 0: no answer came
  ) {
    super(message);
  }
}

export interface ChatMessage {
  role: 'system' | 'user' | 'assistant';
  content: string;
}

// A piece of an answer, in the order in which it comes.
export type AnswerPiece =
  | { kind: 'progress'; done: number; total: number } // of the prompt
  | { kind: 'text'; text: string }
  | { kind: 'reasoning'; text: string }
  | { kind: 'call'; index: number; name: string; arguments: string } // pieces of one index belong together
  | { kind: 'end'; reason: string }
  | { kind: 'numbers'; numbers: AnswerNumbers };

export interface ServerProperties {
  model: string;
  context: number | null;
  version: string;
  defaults: Record<string, number>; // sampling, by name
}

type Members = Record<string, any>; // JSON of the server, whose members are looked at one by one

function headers(key: string): Record<string, string> {
  return key ? { Authorization: `Bearer ${key}` } : {};
}

async function failureOf(response: Response): Promise<ApiFailure> {
  let message = `the server answered ${response.status} ${response.statusText}`.trim();
  try {
    const error = ((await response.json()) as Members).error;
    if (typeof error?.message === 'string') message = error.message;
  } catch {
    // not JSON: the status says it
  }
  const wait = response.headers.get('retry-after');
  if (wait && (response.status === 429 || response.status === 503)) message += ` (try again in ${wait} s)`;
  return new ApiFailure(message, response.status);
}

async function ask(path: string, key: string, init: RequestInit): Promise<Response> {
  let response: Response;
  try {
    response = await fetch(path, { ...init, headers: { ...headers(key), ...init.headers }, cache: 'no-store' });
  } catch (error) {
    if (init.signal?.aborted) throw error;
    throw new ApiFailure('the server cannot be reached', 0);
  }
  if (!response.ok) throw await failureOf(response);
  return response;
}

export async function getJson(path: string, key: string, signal?: AbortSignal): Promise<Members> {
  return (await ask(path, key, { signal: signal ?? null })).json() as Promise<Members>;
}

export async function getProperties(key: string): Promise<ServerProperties> {
  const props = await getJson('props', key);
  const settings = props.default_generation_settings ?? {};
  const params: Members = settings.params ?? {};
  const defaults: Record<string, number> = {};
  for (const [name, value] of Object.entries(params))
    if (typeof value === 'number') defaults[name === 'repeat_penalty' ? 'repetition_penalty' : name] = value;
  return {
    model: String(props.model_alias ?? ''),
    context: typeof settings.n_ctx === 'number' ? settings.n_ctx : null,
    version: String(props.build_info ?? ''),
    defaults,
  };
}

// Streams an answer. Ends by returning, or by throwing ApiFailure, or AbortError when `signal` stopped it.
export async function streamChat(
  request: { messages: ChatMessage[]; fields: Record<string, unknown>; key: string; signal: AbortSignal },
  onPiece: (piece: AnswerPiece) => void,
): Promise<void> {
  const response = await ask('v1/chat/completions', request.key, {
    method: 'POST',
    headers: { 'Content-Type': 'application/json' },
    body: JSON.stringify({
      stream: true,
      stream_options: { include_usage: true },
      return_progress: true,
      timings_per_token: true,
      ...request.fields,
      messages: request.messages,
    }),
    signal: request.signal,
  });
  const reader = response.body!.getReader();
  const parser = new EventStreamParser();
  let ended = false;
  for (;;) {
    let part: ReadableStreamReadResult<Uint8Array>;
    try {
      part = await reader.read();
    } catch (error) {
      if (request.signal.aborted) throw error;
      throw new ApiFailure('the connection broke off in the middle of the answer', 0);
    }
    if (part.done) break;
    for (const data of parser.add(part.value)) {
      if (data === '[DONE]') return;
      for (const piece of piecesOf(data)) {
        ended ||= piece.kind === 'end';
        onPiece(piece);
      }
    }
  }
  if (!ended) throw new ApiFailure('the server ended the answer too early', 0);
}

function piecesOf(data: string): AnswerPiece[] {
  const chunk = JSON.parse(data) as Members;
  if (chunk.error) throw new ApiFailure(String(chunk.error.message ?? 'the server reports an error'), 0);
  const pieces: AnswerPiece[] = [];
  const progress = chunk.prompt_progress;
  if (progress) pieces.push({ kind: 'progress', done: Number(progress.processed), total: Number(progress.total) });
  const choice = chunk.choices?.[0];
  const delta: Members = choice?.delta ?? {};
  const reasoning = delta.reasoning_content ?? delta.reasoning;
  if (typeof reasoning === 'string' && reasoning) pieces.push({ kind: 'reasoning', text: reasoning });
  if (typeof delta.content === 'string' && delta.content) pieces.push({ kind: 'text', text: delta.content });
  for (const call of delta.tool_calls ?? [])
    pieces.push({
      kind: 'call',
      index: Number(call.index ?? 0),
      name: String(call.function?.name ?? ''),
      arguments: String(call.function?.arguments ?? ''),
    });
  if (choice?.finish_reason) pieces.push({ kind: 'end', reason: String(choice.finish_reason) });
  if (chunk.usage || chunk.timings) pieces.push({ kind: 'numbers', numbers: numbersOf(chunk) });
  return pieces;
}

function numbersOf(chunk: Members): AnswerNumbers {
  const out: AnswerNumbers = {};
  const take = (name: keyof AnswerNumbers, value: unknown) => {
    if (typeof value === 'number') out[name] = value;
  };
  take('prompt_tokens', chunk.usage?.prompt_tokens);
  take('cached_tokens', chunk.usage?.prompt_tokens_details?.cached_tokens);
  take('new_tokens', chunk.usage?.completion_tokens);
  take('prompt_ms', chunk.timings?.prompt_ms);
  take('decode_ms', chunk.timings?.predicted_ms);
  return out;
}
