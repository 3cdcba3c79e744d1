// The certified provider `oidc-provider` as the issuer of a test: PORT and the address of the answer are its arguments.
import { Provider } from 'oidc-provider';

const [port, answer] = process.argv.slice(2);
const account = (_context, sub) => ({
  accountId: sub,
  claims: async () => ({ sub, preferred_username: sub, email: `${sub}@lab.example`, groups: ['research'] }),
});
const provider = new Provider(`http://127.0.0.1:${port}`, {
  clients: [{
    client_id: 'parlab', client_secret: 's', redirect_uris: [answer], response_types: ['code'],
    grant_types: ['authorization_code'],
  }],
  claims: { openid: ['sub'], email: ['email'], profile: ['preferred_username', 'groups'] },
  findAccount: account,
  pkce: { required: () => true },
  features: { devInteractions: { enabled: true } },
});
provider.listen(Number(port), '127.0.0.1');
