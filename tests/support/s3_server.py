"""`python -m tests.support.s3_server HOST`: an S3 server in memory, which accepts any credentials.

It writes its port to standard output.
"""

import sys

from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import make_server

if __name__ == "__main__":
    application = DomainDispatcherApplication(create_backend_app)
    server = make_server(sys.argv[1], 0, application, threaded=True)
    sys.stdout.write(f"{server.server_port}\n")
    sys.stdout.flush()
    server.serve_forever()
