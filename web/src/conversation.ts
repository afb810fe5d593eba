// A conversation as a tree of messages: an edited message or another answer is a sibling of the first, so nothing that was
// said is lost. What is shown is the path to one leaf. Pure; messages and conversations are replaced, never changed.
import { emptySettings, type Settings } from './settings';

export interface AnswerNumbers {
  prompt_tokens?: number;
  cached_tokens?: number; // of the prompt
  new_tokens?: number;
  prompt_ms?: number;
  decode_ms?: number;
}

export interface ToolCall {
  name: string;
  arguments: string;
}

export interface Message {
  id: string;
  parent: string | null;
  role: 'user' | 'assistant';
  text: string;
  created: number; // ms since 1970
  reasoning?: string;
  calls?: ToolCall[];
  // How an answer ended: the API's finish reason, or "stopped" by the user, "failed", "interrupted" when the page went away,
  // "edited" by hand. An answer without it is being written.
  end?: string;
  error?: string;
  numbers?: AnswerNumbers;
}

export interface Conversation {
  id: string;
  title: string;
  created: number;
  changed: number;
  settings: Settings;
  messages: Message[]; // parents before their children
  leaf: string | null;
}

// Not crypto.randomUUID: browsers keep that from pages that are served over plain HTTP to another machine.
export function newId(): string {
  return Array.from(crypto.getRandomValues(new Uint8Array(12)), (b) => b.toString(16).padStart(2, '0')).join('');
}

export function newConversation(settings: Settings = emptySettings()): Conversation {
  const now = Date.now();
  return { id: newId(), title: '', created: now, changed: now, settings, messages: [], leaf: null };
}

export function newMessage(parent: string | null, role: Message['role'], text: string): Message {
  return { id: newId(), parent, role, text, created: Date.now() };
}

export function findMessage(conversation: Conversation, id: string | null): Message | undefined {
  return conversation.messages.find((m) => m.id === id);
}

// From the first message to `leaf`.
export function pathTo(conversation: Conversation, leaf: string | null): Message[] {
  const byId = new Map(conversation.messages.map((m) => [m.id, m]));
  const path: Message[] = [];
  for (let m = leaf === null ? undefined : byId.get(leaf); m; m = m.parent === null ? undefined : byId.get(m.parent)) path.push(m);
  return path.reverse();
}

// Siblings are the versions of one turn.
export function idsByParent(conversation: Conversation): Map<string | null, string[]> {
  const out = new Map<string | null, string[]>();
  for (const { id, parent } of conversation.messages) {
    const ids = out.get(parent);
    if (ids) ids.push(id);
    else out.set(parent, [id]);
  }
  return out;
}

// The leaf below a message that was written last.
export function lastLeafBelow(conversation: Conversation, id: string): string {
  const below = new Set([id]);
  let leaf = id;
  for (const m of conversation.messages) {
    if (m.parent === null || !below.has(m.parent)) continue;
    below.add(m.id);
    leaf = m.id;
  }
  return leaf;
}

export function withMessage(conversation: Conversation, message: Message): Conversation {
  return { ...conversation, messages: [...conversation.messages, message], leaf: message.id, changed: Date.now() };
}

export function withChange(conversation: Conversation, id: string, change: Partial<Message>): Conversation {
  const messages = conversation.messages.map((m) => (m.id === id ? { ...m, ...change } : m));
  return { ...conversation, messages, changed: Date.now() };
}

export function titleFrom(text: string): string {
  const line = text.trim().replace(/\s+/g, ' ');
  return line.length <= 60 ? line : line.slice(0, 57).trimEnd() + '…';
}

export function shownTitle(conversation: Conversation): string {
  return conversation.title || 'New conversation';
}
