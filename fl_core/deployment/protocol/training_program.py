"""What every client is told to run."""

from fedlm.fl_core.deployment.protocol import messages_pb2 as messages
from fedlm.fl_core.deployment.server.settings import Deployment


def program_message(deployment: Deployment, vocabulary_size: int) -> messages.TrainingProgram:
    """Put the part of the settings that clients need into a message.

    Args:
      deployment: the settings.
      vocabulary_size: of the model.

    Returns:
      The message.
    """
    training = deployment.local_training()
    return messages.TrainingProgram(
        model=deployment.model,
        vocabulary_size=vocabulary_size,
        length=deployment.length,
        precision=deployment.precision,
        batch_size=training.batch_size,
        epochs=training.epochs,
        max_batches=training.max_batches,
        gradient_clip=training.gradient_clip,
        max_examples=training.max_examples,
        cap_order=training.cap_order,
        batches_across_epochs=training.batches_across_epochs,
        upload_bits=deployment.upload_bits,
        upload_rotation=deployment.upload_rotation,
    )
