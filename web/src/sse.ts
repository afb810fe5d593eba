// Takes a text/event-stream apart. Bytes may be cut anywhere, also inside a character; an event that is not followed by an
// empty line is not complete and is dropped, as the format asks.

export class EventStreamParser {
  private readonly decoder = new TextDecoder();
  private rest = ''; // a line that is not complete
  private data: string[] = []; // of the event that is being read

  // The data of the events that these bytes complete.
  add(bytes: Uint8Array): string[] {
    this.rest += this.decoder.decode(bytes, { stream: true });
    const events: string[] = [];
    // A CR at the end may be half of a line's end: it waits for what follows.
    const lines = this.rest.split(/\r\n|\n|\r(?!$)/);
    this.rest = lines.pop() ?? '';
    for (const line of lines) {
      if (line === '') {
        if (this.data.length > 0) events.push(this.data.join('\n'));
        this.data = [];
      } else if (line.startsWith('data:')) {
        this.data.push(line.slice(line[5] === ' ' ? 6 : 5));
      } // comments keep the connection alive; other fields mean nothing here
    }
    return events;
  }
}
