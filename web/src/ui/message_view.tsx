// One message, with what can be done to it.
import { useLayoutEffect, useRef, useState } from 'preact/hooks';
import type { Message } from '../conversation';
import type { Writing } from '../session';
import { copyText } from './clipboard';
import { IconButton } from './icons';
import { MarkdownView } from './markdown_view';
import { numbersText } from './numbers_text';

export interface MessageActions {
  edit(id: string, text: string): void;
  retry(id: string): void;
  show(id: string): void;
}

interface Props {
  message: Message;
  siblings: string[]; // ids, itself among them
  writing: Writing | null; // where this message is being written
  busy: boolean; // some answer of the conversation is being written
  editing: boolean;
  setEditing: (id: string | null) => void;
  actions: MessageActions;
}

export function MessageView(props: Props) {
  const { message, editing, setEditing, actions } = props;
  const isUser = message.role === 'user';
  return (
    <article class={`message ${message.role}`} aria-label={isUser ? 'You' : 'Answer'} data-id={message.id}>
      {editing ? (
        <Editor
          message={message}
          onDone={(text) => {
            setEditing(null);
            if (text !== null) actions.edit(message.id, text);
          }}
        />
      ) : (
        <>
          {message.reasoning && <Reasoning text={message.reasoning} under_way={!!props.writing && !message.text} />}
          {isUser ? <div class="plain">{message.text}</div> : <MarkdownView text={message.text} />}
          {message.calls?.map((call, i) => (
            <details class="reasoning" key={i} open>
              <summary>Call of {call.name}</summary>
              <pre class="call">{call.arguments}</pre>
            </details>
          ))}
          {props.writing && !message.text && <Waiting writing={props.writing} reasoning={!!message.reasoning} />}
          <Ending message={message} onRetry={() => actions.retry(message.id)} busy={props.busy} />
          <Actions {...props} />
        </>
      )}
    </article>
  );
}

function Reasoning({ text, under_way }: { text: string; under_way: boolean }) {
  return (
    <details class="reasoning">
      <summary>{under_way ? 'Thinking…' : `Thought about it (${text.length.toLocaleString('en')} characters)`}</summary>
      <MarkdownView text={text} />
    </details>
  );
}

function Waiting({ writing, reasoning }: { writing: Writing; reasoning: boolean }) {
  const { progress } = writing;
  if (reasoning) return null;
  if (!progress || progress.total === 0) return <p class="waiting">Waiting for the first token…</p>;
  return (
    <p class="waiting">
      <label>
        Reading the prompt: {progress.done} of {progress.total} tokens <progress value={progress.done} max={progress.total} />
      </label>
    </p>
  );
}

const kEndings: Record<string, string> = {
  stopped: 'Stopped.',
  interrupted: 'The page was closed while this was being written.',
  length: 'Ended at the limit of tokens.',
  content_filter: 'Ended by a filter.',
};

function Ending({ message, onRetry, busy }: { message: Message; onRetry: () => void; busy: boolean }) {
  if (message.end === 'failed')
    return (
      <p class="failure" role="alert">
        {message.error ?? 'The answer failed.'}{' '}
        <button type="button" onClick={onRetry} disabled={busy}>
          Try again
        </button>
      </p>
    );
  const text = message.end === undefined ? undefined : kEndings[message.end];
  return text ? <p class="ending">{text}</p> : null;
}

function Actions({ message, siblings, writing, busy, setEditing, actions }: Props) {
  const [copied, setCopied] = useState(false);
  if (writing) return null;
  const at = siblings.indexOf(message.id);
  const copy = async () => {
    setCopied(await copyText(message.text));
    window.setTimeout(() => setCopied(false), 1500);
  };
  return (
    <footer class="actions">
      {siblings.length > 1 && (
        <span class="siblings">
          <IconButton icon="left" label="Version before" disabled={at === 0 || busy} onClick={() => actions.show(siblings[at - 1]!)} />
          <span>
            {at + 1} / {siblings.length}
          </span>
          <IconButton icon="right" label="Version after" disabled={at === siblings.length - 1 || busy} onClick={() => actions.show(siblings[at + 1]!)} />
        </span>
      )}
      <IconButton icon={copied ? 'check' : 'copy'} label={copied ? 'Copied' : 'Copy message'} onClick={() => void copy()} />
      <IconButton icon="edit" label="Edit message" disabled={busy} onClick={() => setEditing(message.id)} />
      {message.role === 'assistant' && <IconButton icon="retry" label="Try another answer" disabled={busy} onClick={() => actions.retry(message.id)} />}
      {message.numbers && <span class="numbers">{numbersText(message.numbers)}</span>}
    </footer>
  );
}

function Editor({ message, onDone }: { message: Message; onDone: (text: string | null) => void }) {
  const [text, setText] = useState(message.text);
  const area = useRef<HTMLTextAreaElement>(null);
  useLayoutEffect(() => { // before anything can be typed: later, the caret would jump
    area.current!.focus();
    area.current!.setSelectionRange(text.length, text.length);
  }, []);
  const isUser = message.role === 'user';
  const save = () => onDone(text.trim() === '' || text === message.text ? null : text);
  return (
    <form
      class="editor"
      onSubmit={(event) => {
        event.preventDefault();
        save();
      }}
    >
      <textarea
        ref={area}
        aria-label="Edit message"
        rows={Math.min(20, Math.max(3, text.split('\n').length + 1))}
        value={text}
        onInput={(event) => setText(event.currentTarget.value)}
        onKeyDown={(event) => {
          if (event.key === 'Escape') {
            event.stopPropagation();
            onDone(null);
          } else if (event.key === 'Enter' && !event.isComposing && (isUser ? !event.shiftKey : event.ctrlKey || event.metaKey)) {
            event.preventDefault();
            save();
          }
        }}
      />
      <div class="row">
        <button type="submit" class="primary" disabled={text.trim() === ''}>
          {isUser ? 'Send' : 'Save'}
        </button>
        <button type="button" onClick={() => onDone(null)}>
          Cancel
        </button>
        <span class="hint">The version before stays: see the arrows below the message.</span>
      </div>
    </form>
  );
}
