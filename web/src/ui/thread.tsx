// The messages of the conversation that is shown. It follows an answer that grows, unless the reader has scrolled away.
import { useCallback, useLayoutEffect, useMemo, useRef, useState } from 'preact/hooks';
import { type Conversation, idsByParent, pathTo } from '../conversation';
import type { Session, Writing } from '../session';
import { Icon } from './icons';
import { type MessageActions, MessageView } from './message_view';

interface Props {
  session: Session;
  conversation: Conversation;
  writing: Writing | null;
  editing: string | null;
  setEditing: (id: string | null) => void;
}

const kNear = 60; // px from the end that count as being there

export function Thread({ session, conversation, writing, editing, setEditing }: Props) {
  const box = useRef<HTMLDivElement>(null);
  const follows = useRef(true);
  const [away, setAway] = useState(false);
  const path = pathTo(conversation, conversation.leaf);
  const siblings = idsByParent(conversation);
  const actions: MessageActions = useMemo(
    () => ({
      edit: (id, text) => session.edit(id, text),
      retry: (id) => session.retry(id),
      show: (id) => session.show(id),
    }),
    [session],
  );

  const toEnd = useCallback(() => {
    follows.current = true;
    box.current!.scrollTop = box.current!.scrollHeight;
  }, []);
  useLayoutEffect(toEnd, [conversation.id, path.length]);
  useLayoutEffect(() => {
    if (follows.current) box.current!.scrollTop = box.current!.scrollHeight;
  });

  const onScroll = () => {
    const e = box.current!;
    follows.current = e.scrollHeight - e.scrollTop - e.clientHeight < kNear;
    setAway(!follows.current);
  };

  return (
    <div class="thread-holder">
      <div class="thread" ref={box} onScroll={onScroll} tabIndex={0} role="region" aria-label="Messages">
        {conversation.settings.system.trim() && (
          <details class="system">
            <summary>System prompt</summary>
            <div class="plain">{conversation.settings.system}</div>
          </details>
        )}
        {path.length === 0 && <Welcome model={session.state.server?.model ?? ''} />}
        {path.map((message) => (
          <MessageView
            key={message.id}
            message={message}
            siblings={siblings.get(message.parent)!}
            writing={writing?.message === message.id ? writing : null}
            busy={writing !== null}
            editing={editing === message.id}
            setEditing={setEditing}
            actions={actions}
          />
        ))}
      </div>
      {away && (
        <button type="button" class="to-end" onClick={toEnd}>
          <Icon name="down" /> To the end
        </button>
      )}
    </div>
  );
}

function Welcome({ model }: { model: string }) {
  return (
    <div class="welcome">
      <h2>{model ? `Talk to ${model}` : 'A new conversation'}</h2>
      <p>Conversations stay in this browser. What you write goes to this server and nowhere else.</p>
    </div>
  );
}
