// Copies text. Browsers give pages that came over plain HTTP from another machine no clipboard, but still the old command.

export async function copyText(text: string): Promise<boolean> {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    const area = document.createElement('textarea');
    area.value = text;
    area.className = 'unseen';
    document.body.append(area);
    area.select();
    const copied = document.execCommand('copy');
    area.remove();
    return copied;
  }
}

// Shows on a button for a moment that it has worked.
export async function copyFrom(button: HTMLButtonElement, text: string): Promise<void> {
  const before = button.textContent;
  button.textContent = (await copyText(text)) ? 'Copied' : 'Not copied';
  window.setTimeout(() => (button.textContent = before), 1500);
}
