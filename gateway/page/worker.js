/** Keeps the page's own files, so that chats can be read while the server cannot be reached. */

const CACHE = "corral.page";
const scope = self.registration.scope;

addEventListener("install", () => skipWaiting());
addEventListener("activate", event => event.waitUntil(clients.claim()));
addEventListener("message", ({ data: urls }) => { // those that came before this worker
  caches.open(CACHE).then(cache => cache.addAll(urls.filter(url => url.startsWith(scope)))).catch(() => {});
});
addEventListener("fetch", event => {
  if (event.request.method === "GET" && event.request.url.startsWith(scope)) event.respondWith(read(event.request));
});

/** The file of the server, or the kept one. */
async function read(request) {
  try {
    const response = await fetch(request);
    if (response.ok) keep(request, response.clone()).catch(() => {}); // the storage is full
    return response;
  } catch (error) {
    const kept = await caches.match(request, { cacheName: CACHE, ignoreSearch: true, ignoreVary: true });
    if (kept) return kept;
    throw error;
  }
}

async function keep(request, response) {
  const cache = await caches.open(CACHE);
  await cache.put(request, response);
}
