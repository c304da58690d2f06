// Event streams as one writes them in Node: a set of responses, and a loop that writes to each. Posts are kept in memory.

import { createServer } from "node:http";

const listeners = new Set();
let lastId = 0;

createServer((request, response) => {
  if (request.url === "/post/events") {
    response.writeHead(200, { "Content-Type": "text/event-stream", "Cache-Control": "no-store" });
    response.write("retry: 1000\n\n");
    listeners.add(response);
    request.on("close", () => listeners.delete(response));
  } else if (request.url === "/post" && request.method === "POST") {
    let body = "";
    request.on("data", (piece) => {
      body += piece;
    });
    request.on("end", () => {
      const { post } = JSON.parse(body);
      lastId += 1;
      response.writeHead(201, { "Content-Type": "text/plain" });
      response.end("Success a Post!\n");
      const event = `event: added\nid: ${lastId}\ndata: ${JSON.stringify({ id: lastId, post })}\n\n`;
      for (const listener of listeners) {
        listener.write(event);
      }
    });
  } else {
    response.writeHead(404);
    response.end();
  }
}).listen(Number(process.argv[2]), "127.0.0.1");
