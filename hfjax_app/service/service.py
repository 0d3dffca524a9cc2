"""The service: every page, API and protocol asks here, so that limits, quotas and counts are the same for all."""

from hfjax_app.backends import Backends
from hfjax_app.service.admission import Admission
from hfjax_app.service.chat import ChatService
from hfjax_app.service.images import ImagesService
from hfjax_app.service.models import ModelsService
from hfjax_app.service.sentiment import SentimentService
from hfjax_app.service.usage import Usage


class Service:
    """What all clients of an app share.

    Args:
        backends: the models; they may still be warming up.

    Attributes:
        usage: the clients' tokens.
        admission: of all requests.
        chat, sentiment, images, models: answer requests.
    """

    def __init__(self, backends: Backends):
        settings = backends.settings
        self.backends = backends
        self.usage = Usage()
        self.admission = Admission(backends, settings.client_requests, self.usage)
        self.chat = ChatService(backends.chat_models, settings.context, self.usage)
        self.sentiment = SentimentService(backends.sentiment_models, backends.chat_models)
        self.images = ImagesService(backends.image_models)
        self.models = ModelsService(backends)
