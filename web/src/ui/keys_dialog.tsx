// The list of keys, and what they do.
import { Dialog } from './dialog';

export const kKeys: readonly [string[], string][] = [
  [['Enter'], 'send the message'],
  [['Shift', 'Enter'], 'start a new line'],
  [['Esc'], 'stop the answer; leave an edit; close what is open'],
  [['↑'], 'in an empty message: edit the last one'],
  [['/'], 'go to the message'],
  [['Alt', 'N'], 'new conversation'],
  [['Alt', '↑'], 'conversation above in the list'],
  [['Alt', '↓'], 'conversation below in the list'],
  [['Alt', 'R'], 'another answer to the last message'],
  [['Alt', 'E'], 'show or hide the engine'],
  [['Alt', 'S'], 'settings'],
  [['Alt', 'K'], 'this list'],
];

export function KeysDialog({ onClose }: { onClose: () => void }) {
  return (
    <Dialog title="Keys" onClose={onClose}>
      <dl class="keys">
        {kKeys.map(([keys, what]) => (
          <div key={what}>
            <dt>
              {keys.map((key, i) => (
                <>
                  {i > 0 && '+'}
                  <kbd>{key}</kbd>
                </>
              ))}
            </dt>
            <dd>{what}</dd>
          </div>
        ))}
      </dl>
    </Dialog>
  );
}
