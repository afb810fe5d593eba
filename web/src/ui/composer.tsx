// Where a message is written. What was begun stays with its conversation until it is sent.
import type { RefObject } from 'preact';
import { useLayoutEffect, useRef, useState } from 'preact/hooks';
import { Icon } from './icons';

interface Props {
  conversation: string; // its id
  writing: boolean;
  area: RefObject<HTMLTextAreaElement | null>;
  onSend: (text: string) => void;
  onStop: () => void;
  onEditLast: () => void;
}

export function Composer({ conversation, writing, area, onSend, onStop, onEditLast }: Props) {
  const drafts = useRef(new Map<string, string>());
  const [, setVersion] = useState(0);
  const text = drafts.current.get(conversation) ?? '';
  const setText = (next: string) => {
    drafts.current.set(conversation, next);
    setVersion((v) => v + 1);
  };
  useLayoutEffect(() => {
    const e = area.current!;
    e.style.height = 'auto';
    e.style.height = `${e.scrollHeight + 2}px`; // up to the limit in the style sheet
  }, [text]);

  const send = () => {
    if (writing || text.trim() === '') return;
    setText('');
    onSend(text);
  };
  return (
    <form
      class="composer"
      onSubmit={(event) => {
        event.preventDefault();
        send();
      }}
    >
      <textarea
        ref={area}
        rows={1}
        value={text}
        aria-label="Message"
        placeholder="Write a message"
        aria-describedby="composer-hint"
        onInput={(event) => setText(event.currentTarget.value)}
        onKeyDown={(event) => {
          if (event.key === 'Enter' && !event.shiftKey && !event.isComposing) {
            event.preventDefault();
            send();
          } else if (event.key === 'ArrowUp' && text === '') {
            event.preventDefault();
            onEditLast();
          }
        }}
      />
      {writing ? (
        <button type="button" class="send stop" onClick={onStop} aria-label="Stop" title="Stop (Esc)">
          <Icon name="stop" />
        </button>
      ) : (
        <button type="submit" class="send" disabled={text.trim() === ''} aria-label="Send" title="Send (Enter)">
          <Icon name="send" />
        </button>
      )}
      <p id="composer-hint" class="hint">
        <kbd>Enter</kbd> sends, <kbd>Shift</kbd>+<kbd>Enter</kbd> starts a line, <kbd>Esc</kbd> stops, <kbd>Alt</kbd>+<kbd>K</kbd> lists all
        keys
      </p>
    </form>
  );
}
