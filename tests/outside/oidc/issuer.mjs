// Runs oidc-provider on loopback, with a client for each line of CLIENTS and keys of its own.
// Prints its URL when it serves, and ends with its standard input.
import { generateKeyPairSync } from "node:crypto";
import { createServer } from "node:http";
import Provider from "oidc-provider";

const { audience, clients } = JSON.parse(process.env.ISSUER);

function newKey(kind, options, alg) {
  const jwk = generateKeyPairSync(kind, options).privateKey.export({ format: "jwk" });
  return { ...jwk, alg, use: "sig", kid: `${alg}-${process.pid}` };
}

const server = createServer((request, response) => handle(request, response));
let handle;
server.listen(Number(process.env.ISSUER_PORT ?? 0), "127.0.0.1", () => {
  const url = `http://127.0.0.1:${server.address().port}`;
  const provider = new Provider(url, {
    clients: clients.map(({ id, secret }) => ({
      client_id: id,
      client_secret: secret,
      grant_types: ["client_credentials"],
      response_types: [],
      redirect_uris: [],
      token_endpoint_auth_method: "client_secret_post",
    })),
    jwks: {
      keys: [
        newKey("rsa", { modulusLength: 2048 }, "RS256"),
        newKey("ec", { namedCurve: "P-256" }, "ES256"),
      ],
    },
    extraTokenClaims: (context, token) => ({
      groups: clients.find(({ id }) => id === token.clientId).groups,
    }),
    features: {
      devInteractions: { enabled: false },
      clientCredentials: { enabled: true },
      resourceIndicators: {
        enabled: true,
        getResourceServerInfo: (context, resource, client) => ({
          scope: "corral:inference corral:read corral:admin",
          audience: resource,
          accessTokenFormat: "jwt",
          accessTokenTTL: clients.find(({ id }) => id === client.clientId).ttl ?? 300,
          jwt: { sign: { alg: resource === audience ? "ES256" : "RS256" } },
        }),
      },
    },
  });
  handle = provider.callback();
  console.log(url);
});
process.stdin.on("end", () => process.exit()).resume();
